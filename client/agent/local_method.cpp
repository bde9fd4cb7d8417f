// SPDX-License-Identifier: Apache-2.0
#include "client/agent/local_method.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

namespace fl::client {

namespace {

/// Checks that the trainer can do what the method asks of it.
Result<void> check_abilities(const Strategy& strategy, const Trainer& trainer) {
  const Trainer::Abilities can = trainer.abilities();
  const LocalRule* const rule = strategy.local();
  const bool has_own_model = rule != nullptr && rule->own_model() != nullptr;
  const bool corrects = has_own_model || (rule != nullptr && rule->correct({}, {}, {}));
  const bool pulls = has_own_model || strategy.proximal_mu() > 0;
  const bool wants_gradient = rule != nullptr && rule->wants_gradient();
  const char* const lacks = strategy.counts_steps() && !can.optimizer ? "optimizer"
                            : corrects && !can.correction             ? "correction"
                            : pulls && !can.proximal                  ? "proximal"
                            : wants_gradient && !can.gradient         ? "gradient"
                                                                      : nullptr;
  if (lacks != nullptr) {
    return Error(Errc::invalid_input,
                 fmt::format("strategy '{}' needs a trainer that supports '{}', and this one does "
                             "not: strategies such as fedavg and fedadam take any trainer",
                             strategy.spec(), lacks));
  }
  if (!strategy.counts_steps() || !trainer.takes_steps_together()) return {};
  return Error(Errc::invalid_input,
               fmt::format("strategy '{}' does not work with --hogwild, because it counts "
                           "local steps that follow each other: leave out --hogwild",
                           strategy.spec()));
}

void fill(wire::SyncTimes& sync, const TrainReport& report) {
  sync.set_ranks(report.sync.ranks);
  sync.set_compute_seconds(report.sync.compute);
  sync.set_exposed_seconds(report.sync.exposed);
  sync.set_hidden_seconds(report.sync.hidden);
  sync.set_coding_seconds(report.sync.coding);
  sync.set_fp32_steps(report.fall_backs.fp32_steps);
}

void fill(wire::UploadBegin& begin, const TrainReport& report) {
  begin.set_examples(report.examples);
  begin.set_steps(report.steps);
  begin.set_loss(report.loss);
  if (report.predictions) begin.set_predictions(*report.predictions);
  begin.set_train_seconds(report.seconds);
  begin.set_setup(printable(report.setup, limits::setup_bytes_max));
  if (report.sync.ranks > 0) fill(*begin.mutable_sync(), report);
  for (const std::string& note : report.notes) {
    if (begin.notes_size() < limits::upload_notes_max)
      begin.add_notes(printable(note, limits::reason_bytes_max));
  }
}

void log_fall_backs(std::uint32_t round, const TrainReport& report) {
  const FallBacks& steps = report.fall_backs;
  if (steps.fp32_steps == 0) return;
  log_info("round {}: {} of {} steps in fp32: {} overflows, {} unusual lengths of the gradient",
           round, steps.fp32_steps, report.steps, steps.overflows, steps.odd_norms);
}

/// values[first + i] += moved[i].
Result<void> add_to(StoredValues& values, std::size_t first, std::span<const float> moved) {
  return change_values(values, first, moved.size(), [&](std::size_t at, std::span<float> piece) {
    for (std::size_t i = 0; i < piece.size(); ++i) piece[i] += moved[at + i];
  });
}

}  // namespace

Result<LocalMethod> LocalMethod::make(const std::string& strategy, Trainer& trainer,
                                      ClientState& state) {
  auto parsed = parse_strategy(strategy);
  if (!parsed) return parsed.error().at("this client can't use the run's strategy");
  FL_TRY(RunLayout layout, run_layout(trainer.layout(), **parsed));
  FL_CHECK(check_abilities(**parsed, trainer));
  return LocalMethod(std::move(*parsed), std::move(layout), trainer, state);
}

std::optional<OwnTensors> LocalMethod::own_tensors(const std::string& model) const {
  if (!has_own_tensors()) return std::nullopt;
  const bool is_whole = own_model() != nullptr;
  OwnTensors own{model, strategy_->spec(), {}, kept_vector_elements() + layout_.personal_elements};
  for (const auto& tensor : trainer_->layout().tensors()) {
    if (is_whole || strategy_->is_personal(tensor.name))
      own.tensors.push_back({tensor.name, tensor.shape});
  }
  return own;
}

Result<void> LocalMethod::write_initial(std::uint64_t seed, StoredValues& out) const {
  PartsSink sink(layout_, write_into(out), drop_values());
  FL_CHECK(trainer_->make_initial(seed, sink));
  return fill_zeros(out, layout_.model_elements);
}

/// How many values the rule's vector has: one for each parameter, or a whole model. 0 without one.
std::size_t LocalMethod::kept_vector_elements() const {
  if (rule() == nullptr || !rule()->keeps_vector()) return 0;
  return own_model() != nullptr ? layout_.model_elements : layout_.parameter_elements;
}

Result<NewValues> LocalMethod::next_local_values(const StoredValues& version, std::uint64_t seed) {
  const std::size_t size = kept_vector_elements() + layout_.personal_elements;
  FL_TRY(const auto before, state_->local_values(size));
  FL_TRY(auto next, state_->new_local_values(size));
  if (before.size() == 0) {
    FL_CHECK(write_first_local_values(version, seed, next.values));
  } else {
    FL_CHECK(copy_values(before.values(), next.values));
  }
  FL_CHECK(before.check());
  return next;
}

Result<StoredValues> LocalMethod::own_values(const StoredValues& version,
                                             std::uint64_t seed) const {
  if (!has_own_tensors()) return StoredValues();
  const std::size_t size = kept_vector_elements() + layout_.personal_elements;
  FL_TRY(auto values, state_->local_values(size));
  if (values.size() > 0) return values;
  FL_TRY(values, state_->scratch().borrow(size));
  FL_CHECK(write_first_local_values(version, seed, values));
  return values;
}

/// The local values of a client that has no accepted update yet.
Result<void> LocalMethod::write_first_local_values(const StoredValues& version, std::uint64_t seed,
                                                   StoredValues& target) const {
  const std::size_t vector = kept_vector_elements();
  if (own_model() != nullptr) {
    FL_CHECK(copy_values(version.values().first(vector), target));
  } else {
    FL_CHECK(fill_zeros(target, 0));
  }
  if (layout_.personal_elements == 0) return {};
  PartsSink sink(layout_, drop_values(), write_into(target, vector));
  return trainer_->make_initial(seed, sink);
}

/// The whole model of a version.
PartsSource LocalMethod::whole_model(const StoredValues& version, const StoredValues& kept) const {
  const auto travels = version.values().first(layout_.model_elements);
  if (layout_.personal_elements == 0) return PartsSource(layout_, travels);
  return PartsSource(layout_, read_from(travels),
                     read_from(kept.values().last(layout_.personal_elements)));
}

Result<void> LocalMethod::check_settings(const TrainSettings& settings) const {
  if (auto fits = strategy_->check(settings); !fits)
    return fits.error().at("the server's settings");
  const Trainer::Abilities can = trainer_->abilities();
  if (settings.proximal_mu > 0 && !can.proximal)
    return Error(Errc::invalid_input,
                 "the run's proximal term needs a trainer that supports 'proximal'");
  if (settings.clip_norm > 0 && !can.clip_norm)
    return Error(Errc::invalid_input,
                 "the run's --clip-norm needs a trainer that supports 'clip_norm'");
  return {};
}

/// The correction, which the trainer adds to every gradient of the whole model. Statistics and
/// personal tensors get zeros.
PartsSource LocalMethod::correction(const StoredValues& version, const StoredValues& kept) const {
  const std::span shared = version.values().subspan(layout_.model_elements);
  const std::span vector = kept.values().first(kept_vector_elements());
  const auto part_of = [](std::span<const float> values, std::uint64_t first, std::size_t count) {
    return values.empty() ? values : values.subspan(first, count);
  };
  const auto read = [this, shared, vector, part_of](std::uint64_t first,
                                                    std::span<float> out) -> Result<void> {
    const std::uint64_t parameters = layout_.parameter_elements;
    const auto corrected = static_cast<std::size_t>(
        first < parameters ? std::min<std::uint64_t>(out.size(), parameters - first) : 0);
    std::ranges::fill(out.subspan(corrected), 0.0F);
    if (corrected > 0) {
      [[maybe_unused]] const bool is_corrected =
          rule()->correct(part_of(shared, first, corrected), part_of(vector, first, corrected),
                          out.first(corrected));
      FL_ASSERT(is_corrected);
    }
    return {};
  };
  return PartsSource(layout_, read, read_zeros());
}

Result<void> LocalMethod::train(const TrainSettings& settings, const StoredValues& version,
                                StoredValues& kept, StoredValues& update, wire::UploadBegin& begin,
                                std::stop_token stop) {
  FL_ASSERT(version.size() == layout_.all.elements() && update.size() == version.size());
  FL_ASSERT(kept.size() == kept_vector_elements() + layout_.personal_elements);
  FL_CHECK(check_settings(settings));
  const PartsSource model = whole_model(version, kept);
  if (own_model() != nullptr) FL_CHECK(train_own(settings, model, kept, stop));
  StoredValues gradient;  // The gradient at the version's model.
  if (rule() != nullptr && rule()->wants_gradient()) {
    FL_TRY(gradient, state_->scratch().borrow(layout_.model_elements));
    PartsSink sink(layout_, write_into(gradient), drop_values());
    FL_CHECK(trainer_->write_gradient(model, settings, sink, stop));
  }
  FL_TRY(const TrainReport report, train_model(settings, version, kept, update, std::move(stop)));
  fill(begin, report);
  log_fall_backs(settings.round, report);
  if (rule() != nullptr) {
    const LocalRound round{settings, report.steps, version.values().subspan(layout_.model_elements),
                           gradient.values()};
    FL_CHECK(finish(round, kept, update));
  }
  FL_CHECK(version.check());
  FL_CHECK(gradient.check());
  FL_CHECK(kept.check());
  return update.check();
}

/// Trains the whole model. What travels of its update goes to `update`, the personal tensors move
/// by the rest.
Result<TrainReport> LocalMethod::train_model(const TrainSettings& settings,
                                             const StoredValues& version, StoredValues& kept,
                                             StoredValues& update, std::stop_token stop) {
  const PartsSource model = whole_model(version, kept);
  const PartsSource added = correction(version, kept);
  const bool is_corrected = rule() != nullptr && rule()->correct({}, {}, {});
  const ValueSource* const used_correction = is_corrected ? &added : nullptr;
  if (layout_.personal_elements == 0) {
    const auto memory = update.memory();
    const auto model_part = memory.empty() ? memory : memory.first(layout_.model_elements);
    PartsSink sink(layout_, write_into(update), drop_values(), model_part);
    return trainer_->train_blocks(model, settings, used_correction, sink, std::move(stop));
  }
  const std::size_t personal = layout_.personal_elements;
  FL_TRY(StoredValues moved, state_->scratch().borrow(personal));
  PartsSink sink(layout_, write_into(update), write_into(moved));
  FL_TRY(TrainReport report,
         trainer_->train_blocks(model, settings, used_correction, sink, std::move(stop)));
  FL_CHECK(add_to(kept, kept.size() - personal, moved.values()));
  FL_CHECK(moved.check());
  return report;
}

/// Lets the rule finish the round, piece by piece.
Result<void> LocalMethod::finish(const LocalRound& round, StoredValues& kept,
                                 StoredValues& update) {
  const bool has_vector = rule()->keeps_vector() && own_model() == nullptr;
  std::vector<float> sent;
  std::vector<float> change;
  std::vector<float> vector;
  const auto copy = [](std::span<const float> from, std::vector<float>& to) {
    to.assign(from.begin(), from.end());
  };
  return for_each_piece(
      layout_.parameter_elements, [&](std::size_t first, std::size_t count) -> Result<void> {
        const auto part_of = [&](std::span<const float> values) {
          return values.empty() ? values : values.subspan(first, count);
        };
        copy(update.values().subspan(first, count), sent);
        change.assign(layout_.has_shared() ? count : 0, 0.0F);
        if (has_vector) copy(kept.values().subspan(first, count), vector);
        rule()->finish(
            {round.settings, round.steps, part_of(round.shared), part_of(round.gradient)}, sent,
            change, vector);
        FL_CHECK(update.write(first, sent));
        if (layout_.has_shared()) FL_CHECK(update.write(layout_.model_elements + first, change));
        return has_vector ? kept.write(first, vector) : success();
      });
}

/// The model of the client's own takes its steps of the round. The trainer's proximal term is about
/// where it starts from, and the correction moves it:
/// lambda (v - v_start) + lambda (v_start - w) = lambda (v - w).
Result<void> LocalMethod::train_own(TrainSettings settings, const ValueSource& global,
                                    StoredValues& kept, std::stop_token stop) {
  settings.local_epochs = own_model()->epochs;
  settings.local_steps = 0;
  settings.proximal_mu = own_model()->lambda;
  const auto lambda = static_cast<float>(own_model()->lambda);
  const auto own = kept.values();
  const auto pull = [&global, own, lambda](std::uint64_t first,
                                           std::span<float> out) -> Result<void> {
    FL_CHECK(global.read(first, out));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = lambda * (own[first + i] - out[i]);
    return {};
  };
  const PartsSource correction(layout_, pull, read_zeros());
  FL_TRY(StoredValues update, state_->scratch().borrow(own.size()));
  PartsSink sink(layout_, write_into(update), drop_values(), update.memory());
  FL_TRY([[maybe_unused]] const TrainReport report,
         trainer_->train_blocks(SpanValues(own), settings, &correction, sink, std::move(stop)));
  FL_CHECK(add_to(kept, 0, update.values()));
  return update.check();
}

Result<LocalMethod::Evaluations> LocalMethod::evaluate(const StoredValues& version,
                                                       const StoredValues& kept,
                                                       std::stop_token stop) {
  Evaluations out;
  if (own_model() != nullptr) {
    FL_TRY(out.own, trainer_->evaluate_blocks(SpanValues(kept.values()), stop));
  }
  FL_TRY(out.model, trainer_->evaluate_blocks(whole_model(version, kept), std::move(stop)));
  FL_CHECK(kept.check());
  FL_CHECK(version.check());
  return out;
}

}  // namespace fl::client
