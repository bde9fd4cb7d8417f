// SPDX-License-Identifier: Apache-2.0
// Decides which clients are asked to train, with which codec: the sampler, over-selection and the
// codec ladder of one run, with the history of the clients. A function of the seed, the round, the
// candidates and their history, so a restart asks the same clients again. On the engine's strand.
#pragma once

#include "server/cohort/codec_choice.hpp"
#include "server/cohort/sampler.hpp"
#include "server/history/records.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace fl::server {

class Picker {
 public:
  struct Options {
    std::vector<std::string> ladder;  // Specs of codecs (codec_choice.hpp).
    std::string sampling;             // A spec that parse_sampler() accepts.
    double over_select = 1;           // Asks this many times the clients needed; 0: adapts.
    double deadline_s = 0;            // 0: no deadline.
    std::uint64_t seed = 0;
  };

  Picker(Options options, const Layout& layout);

  /// Whether picking depends on the clients' histories, which are then read before each round.
  [[nodiscard]] bool needs_histories() const;
  void set_histories(std::map<std::string, ClientHistory> histories);
  /// `examples_max`: as in Candidate.
  [[nodiscard]] Candidate candidate(const std::string& client, std::uint64_t examples,
                                    std::uint64_t examples_max = 0) const;

  /// How many clients a round asks that needs `target` updates, if `everyone` is here.
  [[nodiscard]] std::size_t cohort_size(std::uint32_t target,
                                        std::span<const Candidate> everyone) const;
  /// Makes tasks for up to `count` of the candidates, with client, examples, codec and its reason.
  /// `already`: the number of tasks that the round has; it tells several drawings of one round
  /// apart.
  [[nodiscard]] std::vector<TaskRecord> pick(std::span<const Candidate> candidates,
                                             std::size_t count, Round round,
                                             std::uint64_t already) const;

 private:
  Options options_;
  const Layout& layout_;
  Sampler sampler_;
  std::map<std::string, ClientHistory> histories_;
};

}  // namespace fl::server
