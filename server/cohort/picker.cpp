// SPDX-License-Identifier: Apache-2.0
#include "server/cohort/picker.hpp"

#include "server/cohort/over_selection.hpp"

#include <algorithm>
#include <cmath>

namespace fl::server {

Picker::Picker(Options options, const Layout& layout)
    : options_(std::move(options)),
      layout_(layout),
      sampler_(parse_sampler(options_.sampling).value()) {}

bool Picker::needs_histories() const {
  return sampler_.needs_history() || options_.over_select == 0 || options_.ladder.size() > 1;
}

void Picker::set_histories(std::map<std::string, ClientHistory> histories) {
  histories_ = std::move(histories);
}

Candidate Picker::candidate(const std::string& client, std::uint64_t examples,
                            std::uint64_t examples_max) const {
  const auto history = histories_.find(client);
  return {client, examples, history == histories_.end() ? ClientHistory() : history->second,
          examples_max};
}

std::size_t Picker::cohort_size(std::uint32_t target, std::span<const Candidate> everyone) const {
  if (options_.over_select == 0) return adapted_cohort(target, everyone);
  return static_cast<std::size_t>(std::ceil(target * options_.over_select - 1e-9));
}

std::vector<TaskRecord> Picker::pick(std::span<const Candidate> candidates, std::size_t count,
                                     Round round, std::uint64_t already) const {
  count = std::min(count, candidates.size());
  const auto rungs = rungs_of(options_.ladder, round, layout_);
  const TimeLimit limit = time_limit(rungs, options_.deadline_s, histories_);
  std::vector<TaskRecord> tasks;
  for (const std::size_t picked : sampler_.pick(candidates, count, options_.seed, round, already)) {
    const Candidate& candidate = candidates[picked];
    const CodecChoice choice = choose_codec(rungs, limit, candidate.history);
    TaskRecord task;
    task.round = round;
    task.client = candidate.name;
    task.examples = candidate.examples;
    task.codec = choice.codec;
    task.codec_reason = choice.reason;
    tasks.push_back(std::move(task));
  }
  return tasks;
}

}  // namespace fl::server
