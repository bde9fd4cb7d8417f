// SPDX-License-Identifier: Apache-2.0
// The rule that makes one update of a round's updates (--aggregate). The mean weighs updates by
// their examples, and one member can move it anywhere. The other rules are robust: each member
// counts the same, whatever it claims, and a few can move the result only a little.
//
//   median           The median of each coordinate; of an even number, the mean of the middle two
//                    (Yin 2018, "Byzantine-robust distributed learning", algorithm 1, option I).
//   trimmed:F        The mean of each coordinate without its F smallest and F largest values (Yin
//                    2018, option II). Below 1, F is a part of the updates, rounded up.
//   krum[:f]         The update that is nearest to its n - f - 1 nearest others (Blanchard 2017,
//                    "Machine learning with adversaries"). They take one less; so many are taken
//                    in Farhadkhani 2022, in Allouah 2023, and in the library byzfl.
//   multikrum:f,m    The mean of the m best by Krum's measure (Blanchard 2017, section 4).
//   geomedian        The geometric median, by Weiszfeld's iteration (Pillutla 2022, "Robust
//                    aggregation for federated learning").
//   centered-clip:T  v + the mean of (x_k - v) min(1, T / |x_k - v|), where v is the result of the
//                    round before, and zero at first (Karimireddy 2021, "Learning from history").
//   nnm[:f]+RULE     First each update is replaced by the mean of its n - f nearest, itself
//                    included (Allouah 2023, "Fixing by mixing"). Without f: that of RULE, or else
//                    the most that may be malicious, (n - 1) / 2.
//
// Distances are those of the model's parameters: statistics (layout.hpp), whose scale is another,
// take part in the result only. Pure; any thread.
#pragma once

#include "shared/base/error.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace fl {

struct AggregateRule {
  enum class Kind { mean, median, trimmed, krum, geomedian, centered_clip };
  Kind kind = Kind::mean;
  double trim = 0;                   // The F of trimmed.
  std::optional<std::uint32_t> f;    // For krum and multikrum; none: as many as n allows.
  std::uint32_t best = 1;            // The m of multikrum.
  double clip = 0;                   // The T of centered-clip.
  bool mixes = false;                // The rule begins with nnm+.
  std::optional<std::uint32_t> mix;  // The f of nnm+.

  [[nodiscard]] bool is_mean() const { return kind == Kind::mean; }
  /// Whether each coordinate is made from the updates' values of this coordinate alone.
  [[nodiscard]] bool is_by_coordinate() const {
    return kind == Kind::median || kind == Kind::trimmed;
  }
  [[nodiscard]] bool needs_distances() const { return mixes || !(is_mean() || is_by_coordinate()); }
  /// Whether the rule needs the result of the round before.
  [[nodiscard]] bool has_center() const { return kind == Kind::centered_clip; }

  /// The least number of updates with which the rule means something.
  [[nodiscard]] std::uint32_t least_updates() const;

  // The number of values that trimmed drops at each end of n updates: at least one is left. These
  // functions also accept fewer than least_updates().
  [[nodiscard]] std::size_t trimmed_of(std::size_t n) const;
  [[nodiscard]] std::size_t krum_f_of(std::size_t n) const;
  [[nodiscard]] std::size_t mix_f_of(std::size_t n) const;
};

/// Returns invalid_input, with what would be right, for anything that is not a rule.
[[nodiscard]] Result<AggregateRule> parse_aggregate(std::string_view spec);

}  // namespace fl
