// SPDX-License-Identifier: Apache-2.0
#include "server/round/initial_model.hpp"

#include "shared/base/failpoint.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <span>
#include <string>

namespace fl::server {

namespace {

/// Says which values fp32 can't bring to variance 1, as the model stores it.
void warn_of_scales(std::span<const ColumnSummary> summaries) {
  using Limits = std::numeric_limits<float>;
  for (const ColumnSummary& one : summaries) {
    const double variance = one.count > 0 ? one.squares / one.count : 0;
    if (variance <= 0 || (variance >= Limits::min() && variance <= Limits::max())) continue;
    log_warn(
        "value {} of those that the model scales has the variance {:.3g} over all trainers, which "
        "fp32 can't hold; let all members multiply it by a number that they share",
        &one - summaries.data() + 1, variance);
  }
}

}  // namespace

Awaitable<Result<void>> InitialModel::make() {
  parts_.control.expect_strand();
  const auto scaling = summaries();
  warn_of_scales(scaling);
  auto work = [this, &scaling] { return write(scaling); };
  const auto made = co_await parts_.control.store.with_room(parts_.compute, std::move(work));
  if (!made) co_return made.error();
  auto record = [run = parts_.control.plan.run.id, made = *made](Store& store) {
    return store.rounds().set_initial_model(run, made);
  };
  const auto recorded = co_await parts_.control.store.with_store(std::move(record));
  if (!recorded && recorded.error().code() == Errc::conflict)
    co_return co_await end_removed(recorded.error());
  FL_CO_CHECK(recorded);
  failpoint("initial.committed");
  FL_CO_CHECK(parts_.versions.publish(*made));
  log_info("initial model of {} parameters, digest {}", parts_.control.plan.layout.elements(),
           made->digest.hex());
  parts_.evaluations.ask_all(false);
  parts_.control.changed.notify();
  co_return success();
}

/// The run did not wait for this model any more. If an operator has removed it meanwhile (Runs::
/// give_up()), it ends now; otherwise `error` comes back.
Awaitable<Result<void>> InitialModel::end_removed(Error error) {
  auto find = [run = parts_.control.plan.run.id](Store& store) { return store.runs().find(run); };
  FL_CO_TRY(const auto run, co_await parts_.control.store.with_store(std::move(find)));
  if (!run || run->state != RunState::stopped || run->early_end.empty()) co_return error;
  parts_.evaluations.take_end(run->early_end);
  co_return success();
}

/// The combined summaries of all trainers that are here. Each counts with its examples, as in a
/// round. Under a robust rule it is the median over the trainers, of means and of variances, so
/// that none of them decides alone.
std::vector<ColumnSummary> InitialModel::summaries() const {
  if (parts_.control.plan.summaries() == 0) return {};
  std::vector<std::vector<ColumnSummary>> told;
  std::vector<std::uint64_t> examples;
  for (const auto& peer : parts_.roster.trainers()) {
    if (peer->facts().summaries.empty()) continue;
    told.push_back(peer->facts().summaries);
    examples.push_back(peer->facts().train_examples);
  }
  log_info("mean and variance of {} values come from {} trainers", parts_.control.plan.summaries(),
           told.size());
  if (!parts_.control.plan.rule.is_mean()) return median_summaries(told);
  const std::uint64_t most = parts_.control.plan.examples_max(examples);
  std::vector<ColumnSummary> all(parts_.control.plan.summaries());
  for (std::size_t i = 0; i < told.size(); ++i) {
    const double share = most == 0 || examples[i] <= most
                             ? 1
                             : static_cast<double>(most) / static_cast<double>(examples[i]);
    add_summaries(all, told[i], share);
  }
  return all;
}

/// Runs on a worker, as the next two functions do.
Result<CheckpointRecord> InitialModel::write(std::span<const ColumnSummary> summaries) const {
  const RunPlan& plan = parts_.control.plan;
  std::vector<std::pair<std::string, std::string>> notes{{"run", plan.run.key},
                                                         {"model", plan.run.model}};
  const bool has_file = !plan.settings.initial_weights.empty();
  if (has_file) notes.emplace_back("from", plan.settings.initial_weights);
  FL_TRY(std::vector<float> values, has_file ? values_of_file() : values_of_seed(summaries));
  // Shared vectors, which travel with the model, begin with zeros.
  values.resize(plan.layout.elements());
  FL_TRY(auto out,
         CheckpointWriter::create(parts_.files, parts_.versions.folder(), 0, plan.layout, notes));
  FL_CHECK(out.append(values));
  return out.finish();
}

/// The model's own tensors, without those that are personal.
Result<std::vector<float>> InitialModel::values_of_seed(
    std::span<const ColumnSummary> summaries) const {
  const RunPlan& plan = parts_.control.plan;
  FL_TRY(auto whole, from_seed_(plan.run.model, plan.run.seed));
  if (!summaries.empty()) write_scaling(plan.run.model, summaries, whole);
  std::vector<float> values(plan.run_layout.model_elements);
  std::vector<float> personal(plan.run_layout.personal_elements);
  plan.run_layout.split(whole, values, personal);
  return values;
}

Result<std::vector<float>> InitialModel::values_of_file() const {
  const RunPlan& plan = parts_.control.plan;
  const std::string& path = plan.settings.initial_weights;
  auto read = read_initial_weights(parts_.files, path, plan.model, *plan.strategy);
  // A file that can't be read is the run's fault, not the disk's.
  if (!read && read.error().code() == Errc::io)
    return Error(Errc::invalid_input, read.error().message());
  FL_CHECK(read);
  if (!read->unused.empty()) {
    log_info("{}: these tensors are not used: {}{}", path,
             fmt::format("{}", fmt::join(read->unused, ", ")),
             plan.run_layout.personal_elements > 0
                 ? "; each client makes the personal tensors itself, from the seed"
                 : "");
  }
  return std::move(read->values);
}

}  // namespace fl::server
