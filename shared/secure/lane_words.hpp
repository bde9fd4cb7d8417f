// SPDX-License-Identifier: Apache-2.0
// An update as 64-bit words, whose sums over all clients modulo 2^64 are the sums of their levels:
// what goes under masks. Each word has as many lanes as fit. A lane has room for the sum over all
// clients, so lanes never run over into each other, whatever members send that keep to the format.
//
// The words of a run are in the order of its values, first the lowest bits; each run begins with a
// word of its own. A value x in [-S, S] of a client with weight w is w * (x + S). Behind all runs
// there are three words for each tensor: its tally's squares, clipped and large. The last word is
// the client's training loss, times its weight and 2^32, as a number with a sign.
#pragma once

#include "shared/base/error.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/payload/reader.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl::secure {

/// The most that the weights of a cohort may sum to: 128 members of weight 255.
inline constexpr std::uint64_t weight_sum_max = 128 * 255;

/// The largest magnitude of a loss that counts; larger ones, and those that are not numbers, count
/// as this.
inline constexpr double masked_loss_max = 1 << 14;

/// Where each value is in the words. Immutable; any thread.
class LaneWords {
 public:
  /// `runs`: Codec::lane_runs(). `weight_sum`: of all that may send words; it decides how many bits
  /// a lane has. Requires: 1 <= weight_sum <= weight_sum_max.
  LaneWords(std::vector<codec::LaneRun> runs, std::size_t tensors, std::uint64_t weight_sum);

  [[nodiscard]] const std::vector<codec::LaneRun>& runs() const { return runs_; }
  [[nodiscard]] std::size_t tensors() const { return tensors_; }
  [[nodiscard]] std::uint64_t weight_sum() const { return weight_sum_; }
  /// All words, with those of the tallies and the loss.
  [[nodiscard]] std::uint64_t words() const { return tallies_at() + 3 * tensors_ + 1; }
  /// The first word of a run, of as many as there are runs; behind the last run, of the tallies.
  [[nodiscard]] std::uint64_t begin_of(std::size_t run) const { return begin_[run]; }
  [[nodiscard]] std::uint64_t tallies_at() const { return begin_.back(); }
  /// The bits of a lane of the run: at most 43.
  [[nodiscard]] int lane_bits(std::size_t run) const;

  /// The words of one run, for its integers (read_lane_integers()). Requires: |x| <= most() of the
  /// run, and 1 <= weight <= weight_sum().
  void pack(std::size_t run, std::span<const std::int32_t> integers, std::uint64_t weight,
            std::span<std::uint64_t> words) const;
  /// The sums of weight * integer, from the sums of the words of clients whose weights sum to
  /// `weights`, at most weight_sum().
  void unpack(std::size_t run, std::span<const std::uint64_t> words, std::uint64_t weights,
              std::span<std::int64_t> sums) const;

 private:
  [[nodiscard]] std::size_t lanes_in_word(std::size_t run) const { return 64 / lane_bits(run); }

  std::vector<codec::LaneRun> runs_;
  std::size_t tensors_;
  std::uint64_t weight_sum_;
  std::vector<std::uint64_t> begin_;  // By run; then the end of the last.
};

/// The words of a coded update and its training loss. `update`: its payload, which need not be
/// trusted. `steps`: those of the Offer that it was coded for. Errors: those of the reader, also
/// corrupt if the update is coded in another way than all clients' are.
[[nodiscard]] Result<std::vector<std::uint64_t>> lane_words_of(codec::PayloadReader& update,
                                                               const LaneWords& words,
                                                               const codec::LaneSteps& steps,
                                                               double loss, std::uint64_t weight);
/// The mean loss in the last word of a sum.
[[nodiscard]] double mean_loss_of(std::uint64_t word, std::uint64_t weights);

}  // namespace fl::secure
