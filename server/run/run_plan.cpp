// SPDX-License-Identifier: Apache-2.0
#include "server/run/run_plan.hpp"

#include "server/cohort/codec_choice.hpp"
#include "shared/base/io/digest.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/median.hpp"
#include "shared/codec/spec/parser.hpp"
#include "shared/secure/cohort.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace fl::server {

RunPlan::RunPlan(RunSettings run_settings, RunRecord run_record, const Layout& model_tensors)
    : settings(std::move(run_settings)),
      run(std::move(run_record)),
      ladder(parse_ladder(settings.codec).value()),
      mode(parse_mode(settings.mode).value()),
      strategy(parse_strategy(settings.strategy).value()),
      rule(parse_aggregate(settings.aggregate).value()),
      masked(parse_secure_aggregation(settings.secure_aggregation).value()),
      has_equal_weights(weighs_equally(settings)),
      kept_rounds(parse_kept_rounds(settings.keep_updates).value()),
      model(model_tensors),
      run_layout(fl::run_layout(model_tensors, *strategy).value()),
      layout(run_layout.all) {}

const Layout& RunPlan::layout_of(ModelPart part) const {
  FL_ASSERT(part == ModelPart::whole);
  return layout;
}

std::uint32_t RunPlan::target_clients(std::size_t available) const {
  if (!rule.is_mean()) available = std::min<std::size_t>(available, limits::robust_updates_max);
  if (masked) available = std::min(available, secure::cohort_max);
  const auto all = static_cast<double>(available);
  const double wanted = settings.clients_per_round != 0 ? settings.clients_per_round
                                                        : std::ceil(settings.fraction * all - 1e-9);
  return static_cast<std::uint32_t>(
      std::clamp(wanted, std::min<double>(settings.min_clients, all), all));
}

TimePoint RunPlan::deadline_after(TimePoint start) const {
  if (settings.deadline_s == 0) return never;
  return start + duration_of(settings.deadline_s);
}

std::uint64_t RunPlan::examples_max(std::vector<std::uint64_t> examples) const {
  if (settings.weight_cap == 0 || examples.empty()) return 0;
  const std::uint64_t usual = std::max<std::uint64_t>(1, upper_median(std::move(examples)));
  const double most = std::ceil(settings.weight_cap * static_cast<double>(usual));
  return most < 0x1p63 ? static_cast<std::uint64_t>(most) : 0;
}

std::uint64_t RunPlan::shared_seed_of(Round round) const {
  const std::string identity = fmt::format("{}/{}", settings.seed, round);
  return Digest::of(bytes_of(std::string_view(identity))).short_id();
}

std::uint64_t client_seed(std::uint64_t run_seed, Round round, const std::string& client) {
  const std::string identity = fmt::format("{}/{}/{}", run_seed, round, client);
  return Digest::of(bytes_of(std::string_view(identity))).short_id();
}

std::uint64_t RunPlan::client_seed_of(Round round, const std::string& client) const {
  return client_seed(settings.seed, round, client);
}

codec::SummedSketches RunPlan::summed_sketches(Round round) const {
  if (ladder.size() != 1 || strategy->adds_what_clients_see()) return {};
  return codec::parse_codec(ladder.front(), round).value()->summed_sketches(layout);
}

std::vector<int> RunPlan::lane_bits(Round round) const {
  if (ladder.size() != 1) return {};
  return codec::parse_codec(ladder.front(), round).value()->lane_bits(layout);
}

}  // namespace fl::server
