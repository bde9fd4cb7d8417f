// SPDX-License-Identifier: Apache-2.0
// What a run is, from its first round to its last: its settings, read and checked once, and what
// follows from them alone. Immutable; any thread.
#pragma once

#include "server/history/records.hpp"
#include "server/run/masked_settings.hpp"
#include "server/run/round_mode.hpp"
#include "server/run/settings.hpp"
#include "server/sums/aggregate_rule.hpp"
#include "shared/algorithm/strategy.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/params/layout.hpp"
#include "shared/params/model_part.hpp"
#include "shared/params/model_table.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl::server {

/// RunPlan::client_seed_of() in a run with this seed.
[[nodiscard]] std::uint64_t client_seed(std::uint64_t run_seed, Round round,
                                        const std::string& client);

/// Makes version 0 of `model`, all its tensors, from the seed. Errors: invalid_input for an unknown
/// model.
using WeightsFromSeed =
    std::function<Result<std::vector<float>>(std::string_view model, std::uint64_t seed)>;

struct RunPlan {
  /// The settings have passed check_settings(); `model` has the model's tensors.
  RunPlan(RunSettings run_settings, RunRecord run_record, const Layout& model_tensors);
  RunPlan(const RunPlan&) = delete;
  RunPlan& operator=(const RunPlan&) = delete;

  const RunSettings settings;
  const RunRecord run;                    // The run's record when this engine began.
  const std::vector<std::string> ladder;  // The codecs that clients may be asked for, mostly one.
  const RoundMode mode;
  const std::shared_ptr<const Strategy> strategy;
  const AggregateRule rule;                    // --aggregate.
  const std::optional<MaskedSettings> masked;  // Set in a masked run.
  const bool has_equal_weights;                // --weights.
  const Round kept_rounds;  // The number of newest rounds whose updates are kept; 0: none are kept.
  const Layout model;
  const RunLayout run_layout;  // The layout of versions, updates and sums.
  const Layout& layout;        // The layout's tensors.

  /// The tensors of a part, of its versions, updates and sums.
  [[nodiscard]] const Layout& layout_of(ModelPart part) const;

  /// How many clients a round wants of `available` trainers.
  [[nodiscard]] std::uint32_t target_clients(std::size_t available) const;
  /// The end of a task's or round's time; `never` without --deadline.
  [[nodiscard]] TimePoint deadline_after(TimePoint start) const;

  /// The most examples that one client may count with (--weight-cap): a multiple of the upper
  /// median. 0: no limit. Of two clients the larger one is the median, as neither is the odd one.
  [[nodiscard]] std::uint64_t examples_max(std::vector<std::uint64_t> examples) const;
  /// How much a client with `examples` examples counts in a round.
  [[nodiscard]] std::uint64_t weight_of(std::uint64_t examples, const RoundRecord& round) const {
    return strategy->weight_of(has_equal_weights ? 1 : counted_examples(examples, round));
  }
  [[nodiscard]] static std::uint64_t counted_examples(std::uint64_t examples,
                                                      const RoundRecord& round) {
    return round.examples_max == 0 ? examples : std::min(examples, round.examples_max);
  }
  /// The work that the offers of a round ask for. It is the same whenever it is computed, also
  /// after the round. `losses`: the training losses of at least the rounds before it, the first
  /// round's first.
  [[nodiscard]] TrainSettings work_of(Round round, std::span<const double> losses) const {
    return local_work(settings, *strategy, round, losses);
  }

  /// The first round whose updates are still kept once `last` is recorded.
  [[nodiscard]] Round first_kept(Round last) const {
    return last > kept_rounds ? last - kept_rounds + 1 : 1;
  }
  /// Whether a kept round is replayed with this version, once `last` is recorded.
  [[nodiscard]] bool is_for_replay(Version version, Round last) const {
    // Delay compensation reads the versions that stale updates were trained from, too.
    const Round older = mode.compensation > 0 ? mode.late_max : 0;
    return kept_rounds > 0 && std::uint64_t{version} + 1 + older >= first_kept(last);
  }

  /// The seed that all offers of a version share (CodeInputs, shared/codec/core/plan.hpp).
  [[nodiscard]] std::uint64_t shared_seed_of(Round round) const;
  /// The seed of a client's training in a round. It does not depend on the task's number, so it is
  /// the same after every restart.
  [[nodiscard]] std::uint64_t client_seed_of(Round round, const std::string& client) const;
  /// The sketches that can be added up in a round: those of the one codec that all clients are
  /// asked for.
  [[nodiscard]] codec::SummedSketches summed_sketches(Round round) const;
  /// The bits of each tensor's levels in the updates of a round, if all clients have the same steps
  /// of "lanes" (Codec::lane_bits()); empty if no tensor has such levels.
  [[nodiscard]] std::vector<int> lane_bits(Round round) const;
  /// The number of values whose mean and variance the clients report for the initial model: those
  /// that a built-in model scales (builtin_summaries()). 0 if the initial model comes from a file.
  [[nodiscard]] std::uint64_t summaries() const {
    return settings.initial_weights.empty() ? builtin_summaries(run.model) : 0;
  }
  /// Whether the initial model follows from model and seed alone.
  [[nodiscard]] bool came_from_seed() const {
    return settings.initial_weights.empty() && summaries() == 0;
  }
};

}  // namespace fl::server
