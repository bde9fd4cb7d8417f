// SPDX-License-Identifier: Apache-2.0
#include "client/learn/pipeline_parts.hpp"

#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace fl {

namespace {

struct ScheduleName {
  std::string_view name;
  PipelineSchedule schedule;
};
constexpr ScheduleName schedule_names[] = {
    {"gpipe", PipelineSchedule::gpipe},
    {"1f1b", PipelineSchedule::one_forward_one_back},
    {"interleaved", PipelineSchedule::interleaved},
    {"zb-h1", PipelineSchedule::zero_bubble},
};
constexpr std::int64_t chunks_max = 64;
constexpr std::int64_t embeddings = 2;  // Units before the first block.

/// The number of a tensor's block, from 0; -1 outside of blocks.
std::int64_t block_of(std::string_view tensor) {
  constexpr std::string_view block = "block";
  if (!tensor.starts_with(block)) return -1;
  const auto number =
      number_in<std::int64_t>(tensor.substr(block.size(), tensor.find('.') - block.size()));
  return number.value_or(0) - 1;
}

/// The operations of a rank, as they are added.
class Schedule {
 public:
  Schedule(const PipelineDivision& division, std::int64_t microbatches)
      : division_(division), passes_(microbatches * division.chunks) {}

  [[nodiscard]] bool has_forward() const { return forward_ < passes_; }
  [[nodiscard]] bool has_backward() const { return backward_ < passes_; }
  void add_forward() { add(PipelineOperation::Kind::forward, forward_++, /*turns_chunks=*/false); }
  void add_backward() {
    add(puts_off() ? PipelineOperation::Kind::inputs : PipelineOperation::Kind::backward,
        backward_++, /*turns_chunks=*/true);
  }
  /// Adds the oldest weights' gradients that were put off, if there are more than so many.
  void add_weights_above(std::int64_t most) {
    if (puts_off() && backward_ - weights_ > most)
      add(PipelineOperation::Kind::weights, weights_++, /*turns_chunks=*/true);
  }
  [[nodiscard]] bool has_weights() const { return puts_off() && weights_ < backward_; }
  [[nodiscard]] std::vector<PipelineOperation> take() { return std::move(operations_); }

 private:
  [[nodiscard]] bool puts_off() const {
    return division_.schedule == PipelineSchedule::zero_bubble;
  }
  /// Pass number `pass` of one direction: `ranks` microbatches in one chunk, then in the next.
  void add(PipelineOperation::Kind kind, std::int64_t pass, bool turns_chunks) {
    const std::int64_t group = division_.ranks * division_.chunks;
    const std::int64_t chunk = pass % group / division_.ranks;
    const bool has_groups = division_.chunks > 1;
    operations_.push_back(
        {.kind = kind,
         .microbatch = has_groups ? pass / group * division_.ranks + pass % division_.ranks : pass,
         .chunk = !has_groups ? 0 : (turns_chunks ? division_.chunks - 1 - chunk : chunk)});
  }

  const PipelineDivision division_;
  const std::int64_t passes_;
  std::int64_t forward_ = 0;
  std::int64_t backward_ = 0;
  std::int64_t weights_ = 0;
  std::vector<PipelineOperation> operations_;
};

/// How many forward passes a rank takes before it takes turns.
std::int64_t forward_first(const PipelineDivision& division, std::int64_t rank,
                           std::int64_t passes) {
  const std::int64_t behind = division.ranks - rank - 1;
  switch (division.schedule) {
    case PipelineSchedule::gpipe: return passes;
    case PipelineSchedule::interleaved:
      return std::min(2 * behind + (division.chunks - 1) * division.ranks, passes);
    case PipelineSchedule::one_forward_one_back:
    case PipelineSchedule::zero_bubble: break;
  }
  return std::min(behind, passes);
}

}  // namespace

Result<PipelineDivision> parse_pipeline(std::string_view text, std::int64_t ranks) {
  const auto [name, value] = cut(text, ':');
  const auto refuse = [&] {
    return Error(
        Errc::invalid_input,
        fmt::format("'{}' is none of gpipe, 1f1b, interleaved:N (2 to {} stages on each rank) "
                    "and zb-h1",
                    text, chunks_max));
  };
  for (const auto& known : schedule_names) {
    if (name != known.name) continue;
    PipelineDivision division{.ranks = ranks, .schedule = known.schedule};
    if (known.schedule != PipelineSchedule::interleaved) {
      if (value) return refuse();
      return division;
    }
    const auto chunks = number_in<std::int64_t>(value.value_or(""));
    if (!chunks || *chunks < 2 || *chunks > chunks_max) return refuse();
    division.chunks = *chunks;
    return division;
  }
  return refuse();
}

std::string pipeline_text(const PipelineDivision& division) {
  const auto* const known =
      std::ranges::find(schedule_names, division.schedule, &ScheduleName::schedule);
  return division.chunks == 1 ? std::string(known->name)
                              : fmt::format("{}:{}", known->name, division.chunks);
}

Result<void> check_pipeline(const ModelSpec& spec, std::string_view model,
                            const PipelineDivision& division) {
  if (division.ranks == 1) return {};
  const auto refuse = [&](const std::string& why) {
    return Error(Errc::invalid_input, fmt::format("--parallel pp={} can't divide model {}: {}",
                                                  division.ranks, model, why));
  };
  if (spec.family != ModelSpec::Family::transformer)
    return refuse("only the layers of a transformer are divided; --zero divides any model");
  if (spec.layers % division.stages() != 0)
    return refuse(fmt::format(
        "its {} layers are no multiple of {}{}", spec.layers, division.stages(),
        division.chunks == 1 ? "" : fmt::format(", as each rank has {} stages", division.chunks)));
  return {};
}

std::int64_t blocks_of(const Layout& layout) {
  std::int64_t blocks = 0;
  for (const Layout::Tensor& tensor : layout.tensors())
    blocks = std::max(blocks, block_of(tensor.name) + 1);
  return blocks;
}

std::vector<std::size_t> units_of_stage(const PipelineDivision& division, std::int64_t stage,
                                        std::int64_t blocks) {
  const std::int64_t each = blocks / division.stages();
  const bool is_last = stage + 1 == division.stages();
  std::int64_t unit = stage == 0 ? 0 : embeddings + stage * each;
  const std::int64_t end = embeddings + (stage + 1) * each + (is_last ? 1 : 0);
  std::vector<std::size_t> units;
  while (unit < end) units.push_back(static_cast<std::size_t>(unit++));
  return units;
}

std::vector<std::size_t> units_on_rank(const PipelineDivision& division, std::int64_t rank,
                                       std::int64_t blocks) {
  std::vector<std::size_t> units;
  if (rank > 0 && rank + 1 == division.ranks) units.push_back(0);  // For the logits.
  for (std::int64_t chunk = 0; chunk < division.chunks; ++chunk)
    std::ranges::copy(units_of_stage(division, division.stage_of(rank, chunk), blocks),
                      std::back_inserter(units));
  return units;
}

bool is_on_rank(std::string_view tensor, const PipelineDivision& division, std::int64_t rank,
                std::int64_t blocks) {
  if (division.ranks == 1) return true;
  const bool is_first = rank == 0;
  const bool is_last = rank + 1 == division.ranks;
  if (tensor.starts_with("tokens.")) return is_first || is_last;
  if (tensor.starts_with("positions.")) return is_first;
  const std::int64_t block = block_of(tensor);
  if (block < 0) return is_last;
  return block / (blocks / division.stages()) % division.ranks == rank;
}

bool is_tied(std::string_view tensor, const PipelineDivision& division) {
  return division.ranks > 1 && tensor.starts_with("tokens.");
}

bool is_tied_copy(std::string_view tensor, const PipelineDivision& division, std::int64_t rank) {
  return rank > 0 && is_tied(tensor, division);
}

std::int64_t microbatches_for(const PipelineDivision& division, std::int64_t wanted) {
  if (division.chunks == 1) return wanted;
  return (wanted + division.ranks - 1) / division.ranks * division.ranks;
}

std::vector<PipelineOperation> schedule_of(const PipelineDivision& division, std::int64_t rank,
                                           std::int64_t microbatches) {
  FL_ASSERT(microbatches == microbatches_for(division, microbatches));
  Schedule schedule(division, microbatches);
  const std::int64_t first = forward_first(division, rank, microbatches * division.chunks);
  for (std::int64_t i = 0; i < first; ++i) schedule.add_forward();
  while (schedule.has_forward()) {
    schedule.add_forward();
    schedule.add_backward();
    // As many microbatches as in 1F1B are kept: those at the end of the pipeline have fewer in
    // flight, so that they may put off more.
    schedule.add_weights_above(rank);
  }
  while (schedule.has_backward()) {
    schedule.add_backward();
    schedule.add_weights_above(0);  // In place of waiting for the next gradient.
  }
  while (schedule.has_weights()) schedule.add_weights_above(0);
  return schedule.take();
}

std::vector<PipelineOperation> forward_schedule_of(const PipelineDivision& division,
                                                   std::int64_t rank, std::int64_t microbatches) {
  std::vector<PipelineOperation> operations = schedule_of(division, rank, microbatches);
  std::erase_if(operations, [](const PipelineOperation& operation) {
    return operation.kind != PipelineOperation::Kind::forward;
  });
  return operations;
}

PipelineWay way_into(const PipelineDivision& division, std::int64_t stage) {
  return stage % division.ranks == 0 ? PipelineWay::around_down : PipelineWay::down;
}

PipelineWay way_back_from(const PipelineDivision& division, std::int64_t stage) {
  return stage % division.ranks == 0 ? PipelineWay::around_up : PipelineWay::up;
}

bool has_way(const PipelineDivision& division, PipelineWay way) {
  return way == PipelineWay::down || way == PipelineWay::up || division.chunks > 1;
}

}  // namespace fl
