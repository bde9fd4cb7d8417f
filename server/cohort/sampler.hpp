// SPDX-License-Identifier: Apache-2.0
// Chooses the clients that train in a round. A sampler is a function of the candidates, the run's
// seed and the round, so a restart asks the same clients again. Examples and losses are what
// clients claim, and count bounded by the others' (--weight-cap,
// server/history/counted_claims.hpp).
//
//   uniform          Without replacement, all with the same chance.
//   examples         Without replacement, with chances by examples: Efraimidis and Spirakis 2006.
//                    Use it with a strategy's weight=uniform, or examples count twice.
//   round-robin      The clients that were not asked for longest; by name among equals.
//   power-of-choice  Cho 2020, section 3, the variant rpow-d: draws d clients by examples and takes
//                    those with the highest last known loss. A client without one comes first.
//   oort             Lai 2021, section 4.2 and algorithm 1: by statistical utility, which is
//                    examples times last known loss. (The paper has the root mean square over the
//                    examples, which clients would have to send; here it is the mean.) A client
//                    that took t > T seconds has its utility multiplied by (T / t)^alpha, where T
//                    is the given quantile of all times. A client that was not asked lately gets a
//                    bonus. A part `explore` of those asked are clients that were never asked.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"
#include "shared/base/spec/spec_options.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl::server {

struct Candidate {
  std::string name;
  std::uint64_t examples = 0;
  ClientHistory history = {};  // The client's history in this run; empty if it was never asked.
  /// The most examples that the client counts with (--weight-cap); 0: no limit.
  std::uint64_t examples_max = 0;

  [[nodiscard]] double counted_examples() const {
    return static_cast<double>(examples_max == 0 ? examples : std::min(examples, examples_max));
  }
};

struct Draws;  // The random numbers of one drawing (sampler.cpp).
struct SamplerRow;

struct Sampler {
  const SamplerRow* row;  // A row of the table below.
  std::uint32_t d = 0;    // power-of-choice; 0: twice as many as are asked for.
  double alpha = 2;       // oort's penalty for slow clients.
  double quantile = 0.8;  // The quantile that gives oort's T.
  double explore = 0.1;   // oort's part of clients that were never asked.

  [[nodiscard]] bool needs_history() const;
  /// The indices of `count` different candidates; `count` is at most their number. `draw` numbers
  /// the drawings of one round, so that they differ.
  [[nodiscard]] std::vector<std::size_t> pick(std::span<const Candidate> candidates,
                                              std::size_t count, std::uint64_t seed, Round round,
                                              std::uint64_t draw) const;
};

struct SamplerRow {
  std::string_view name;
  std::string_view usage;  // The grammar, for help.
  /// Picks as Sampler::pick() says.
  std::vector<std::size_t> (*pick)(const Sampler& sampler, std::span<const Candidate> candidates,
                                   std::size_t count, const Draws& draws);
  /// Takes the options behind the colon. Null: there are none.
  void (*read)(SpecOptions& options, Sampler& sampler) = nullptr;
  /// Whether it looks at Candidate::history.
  bool needs_history = false;
  /// Whether it looks at what clients say of their data: examples or losses. In a masked run they
  /// don't say.
  bool needs_claims = false;
};

/// All samplers, in the order in which help shows them.
[[nodiscard]] std::span<const SamplerRow> sampler_rows();

/// "uniform", "oort:alpha=1" and so on. Errors: invalid_input, with all names.
[[nodiscard]] Result<Sampler> parse_sampler(std::string_view spec);

}  // namespace fl::server
