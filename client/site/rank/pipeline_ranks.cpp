// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/pipeline_ranks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace fl::site {

namespace {

/// Tells of a wait, from its beginning to its end.
class Waiting {
 public:
  explicit Waiting(const std::function<void(bool)>& tell) : tell_(tell) { tell_(true); }
  ~Waiting() { tell_(false); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  const std::function<void(bool)>& tell_;
};

}  // namespace

void PipelineRanks::enter(std::unique_ptr<Ranks> ranks, StepTimes& times) {
  times_ = &times;
  std::vector<int> all(static_cast<std::size_t>(ranks->size()));
  std::iota(all.begin(), all.end(), 0);
  for (std::size_t way = 0; way < pipeline_ways; ++way)
    if (has_way(division(), static_cast<PipelineWay>(way)))
      ways_[way] = ranks->subgroup(all, fmt::format("way {}", way));
  PassRanks::enter(std::move(ranks));
}

void PipelineRanks::leave() {
  sent_.clear();
  if (put_off() != nullptr) static_cast<void>(put_off()->take());  // It may hold much memory.
  for (auto& way : ways_) way.reset();
  PassRanks::enter(nullptr);
}

Ranks& PipelineRanks::way_of(const StageValues& what) const {
  const PipelineWay way =
      what.is_gradient ? way_back_from(division(), what.stage) : way_into(division(), what.stage);
  return *ways_[static_cast<std::size_t>(way)];
}

int PipelineRanks::tag_of(const StageValues& what) const {
  return static_cast<int>(what.microbatch * division().stages() + what.stage);
}

void PipelineRanks::send(const StageValues& what, const torch::Tensor& values) {
  Ranks& way = way_of(what);
  const std::int64_t to = (what.stage - (what.is_gradient ? 1 : 0)) % division().ranks;
  Ranks::Posted posted =
      way.post(Ranks::Way::send, {.rank = static_cast<int>(to), .tensor = values.to(way.device())},
               tag_of(what));
  sent_.push_back({what, &way, std::move(posted)});
}

void PipelineRanks::receive(const StageValues& what, torch::Tensor& values) {
  Ranks& way = way_of(what);
  const std::int64_t from = (what.stage - (what.is_gradient ? 0 : 1)) % division().ranks;
  const auto begin = StepTimes::Clock::now();
  {
    const Waiting waiting(on_waiting_);
    on_device_of(way, values, [&](torch::Tensor& there) {
      Ranks::Posted posted = way.post(
          Ranks::Way::receive, {.rank = static_cast<int>(from), .tensor = there}, tag_of(what));
      // All stages may come before.
      way.finish(posted, static_cast<int>(division().stages()));
    });
  }
  times_->waited_for_stage(begin);
  if (what.is_gradient) finish_values_of(what);
}

/// The gradient of values has come, so they are there.
void PipelineRanks::finish_values_of(const StageValues& gradient) {
  const auto found = std::ranges::find_if(sent_, [&](const Sent& sent) {
    return !sent.what.is_gradient && sent.what.stage == gradient.stage &&
           sent.what.microbatch == gradient.microbatch;
  });
  if (found == sent_.end()) return;
  found->ranks->finish(found->posted, 1);
  sent_.erase(found);
}

void PipelineRanks::finish() {
  for (Sent& sent : sent_) sent.ranks->finish(sent.posted, static_cast<int>(division().stages()));
  sent_.clear();
}

void PipelineRanks::sum_of_ends(torch::Tensor& values) {
  const int last = ranks().size() - 1;
  FL_ASSERT(rank() == 0 || rank() == last);
  on_device_of(ranks(), values, [&](torch::Tensor& there) {
    torch::Tensor other = torch::empty_like(there);
    const int end = rank() == 0 ? last : 0;
    const std::array<Transfer, 1> sends{{{end, there}}};
    const std::array<Transfer, 1> receives{{{end, other}}};
    ranks().exchange(sends, receives);
    there.add_(other);
  });
}

}  // namespace fl::site
