// Who is asked to train in a round. A sampler is a function of the candidates, the run's seed and
// the round: a restart asks the same clients again.
//
//   uniform          without replacement, all alike.
//   examples         without replacement, by their examples: Efraimidis and Spirakis 2006. To be
//                    used with a strategy's weight=uniform, or examples count twice.
//   round-robin      those first that were not asked for longest, by name among equals.
//   power-of-choice  Cho 2020, section 3, the variant rpow-d: of d clients drawn by examples those
//                    whose last known loss is highest; one that has none yet comes first.
//   oort             Lai 2021, section 4.2 and algorithm 1: by statistical utility, examples times
//                    last known loss (the paper's root mean square over examples, which clients
//                    would have to send, is replaced by the mean), times (T / t)^alpha for a client
//                    that took t > T seconds, T being the given quantile of all; plus the bonus for
//                    not having been asked lately; a part `explore` of those asked are new ones.
#pragma once

#include "server/history/store.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

struct Candidate {
  std::string name;
  std::uint64_t examples = 0;
  ClientHistory history;  // In this run; of one that was never asked: empty.
};

struct Sampler {
  enum class Kind { uniform, examples, round_robin, power_of_choice, oort };
  Kind kind = Kind::uniform;
  std::uint32_t d = 0;    // power-of-choice; 0: twice as many as are asked for.
  double alpha = 2;       // oort's penalty for slow clients.
  double quantile = 0.8;  // oort's T.
  double explore = 0.1;   // oort's part of new clients.

  [[nodiscard]] bool needs_history() const { return kind >= Kind::round_robin; }
  /// Indices of `count` candidates, different ones; `count` is at most their number. `draw`
  /// tells several drawings of one round apart.
  [[nodiscard]] std::vector<std::size_t> pick(std::span<const Candidate> candidates,
                                              std::size_t count, std::uint64_t seed, Round round,
                                              std::uint64_t draw) const;
};

/// "uniform", "examples", "round-robin", "power-of-choice[:d=D]", "oort[:alpha=…,quantile=…,
/// explore=…]".
[[nodiscard]] Result<Sampler> parse_sampler(std::string_view spec);

}  // namespace fl
