// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/entropy/adaptive_coder.hpp"

#include "shared/base/error.hpp"

#include <array>

namespace fl::codec {

namespace {

constexpr int probability_bits = 16;
constexpr std::uint32_t probability_one = 1u << probability_bits;
// The state lies in [2^16, 2^32).
constexpr std::uint32_t answer_state_min = 1u << 16;
constexpr std::size_t word_bytes = sizeof(std::uint16_t);

/// How often a question was answered so far.
struct Counts {
  std::uint32_t yes = 0;
  std::uint32_t all = 0;

  /// The probability of yes, in units of 2^-16. It is never 0 or 1, because at most
  /// adaptive_levels_max answers are counted.
  [[nodiscard]] std::uint32_t probability() const {
    return (2 * yes + 1) * (probability_one / 2) / (all + 1);
  }
  void add(bool answer) {
    yes += answer ? 1 : 0;
    ++all;
  }
};
static_assert((2 * adaptive_levels_max + 1) * std::uint64_t{probability_one / 2} < 1ull << 32);
static_assert(2 * adaptive_levels_max < probability_one);

/// The range of a state's low bits that means an answer. The range of "no" comes first.
struct AnswerRange {
  std::uint32_t begin;
  std::uint32_t size;
};
AnswerRange range_of(bool answer, std::uint32_t probability) {
  const std::uint32_t no = probability_one - probability;
  return answer ? AnswerRange{no, probability} : AnswerRange{0, no};
}

/// The questions about levels of one class.
struct Questions {
  Counts is_not_zero;
  Counts is_below_zero;
  std::array<Counts, rans_levels_max + 1> is_at_least;  // Counts by size.

  /// Both signs share the counts of a size, because most levels have a symmetric distribution.
  /// Size 2 is the exception: eden's levels go from -2^(B-1) to 2^(B-1) - 1, and with few levels
  /// that asymmetry matters.
  [[nodiscard]] Counts& of_size(std::int32_t size, bool is_negative) {
    return is_at_least[size == 2 && is_negative ? 0 : static_cast<std::size_t>(size)];
  }
};

/// Asks questions until the level is known, and returns it. ask(counts, is_true) returns the answer
/// to a question. The encoder, which knows the level, gets the answer from is_true(level).
template <class Ask>
std::int32_t find_level(Questions& questions, std::int32_t levels, const Ask& ask) {
  if (!ask(questions.is_not_zero, [](std::int32_t level) { return level != 0; })) return 0;
  const bool is_negative =
      ask(questions.is_below_zero, [](std::int32_t level) { return level < 0; });
  const std::int32_t sign = is_negative ? -1 : 1;
  const auto is_at_least = [&](std::int32_t size) {
    return ask(questions.of_size(size, is_negative),
               [=](std::int32_t level) { return level * sign >= size; });
  };
  std::int32_t least = 1;
  std::int32_t end = levels + 1;
  while (2 * least < end) {
    if (!is_at_least(2 * least)) {
      end = 2 * least;
      break;
    }
    least *= 2;
  }
  while (end - least > 1) {
    const std::int32_t middle = least + (end - least) / 2;
    (is_at_least(middle) ? least : end) = middle;
  }
  return sign * least;
}

std::size_t class_of(const LevelClasses& classes, std::size_t i) {
  return classes.count > 1 ? classes.of[i] : 0;
}

}  // namespace

std::size_t write_adaptive_levels(std::span<const std::int16_t> x, std::int32_t levels,
                                  LevelScratch& scratch, MutableBytes out,
                                  const LevelClasses& classes) {
  FL_ASSERT(!x.empty() && x.size() <= adaptive_levels_max);
  FL_ASSERT(levels >= 1 && levels <= rans_levels_max && classes.count <= rans_classes_max);
  std::array<Questions, rans_classes_max> questions{};
  scratch.answers.clear();
  for (std::size_t i = 0; i < x.size(); ++i) {
    find_level(questions[class_of(classes, i)], levels, [&](Counts& counts, const auto& is_true) {
      const bool answer = is_true(x[i]);
      const AnswerRange range = range_of(answer, counts.probability());
      scratch.answers.push_back(range.begin << probability_bits | range.size);
      counts.add(answer);
      return answer;
    });
  }
  // rANS codes the last answer first and writes the words from the end backwards.
  std::uint32_t state = answer_state_min;
  std::size_t at = out.size();
  for (std::size_t i = scratch.answers.size(); i-- > 0;) {
    const AnswerRange range = {scratch.answers[i] >> probability_bits,
                               scratch.answers[i] % probability_one};
    if (state >= range.size << probability_bits) {
      if (at < word_bytes) return 0;
      at -= word_bytes;
      store(out, at, static_cast<std::uint16_t>(state));
      state >>= probability_bits;
    }
    state = (state / range.size << probability_bits) + state % range.size + range.begin;
  }
  // The state does not fit, or fills all of `out`: the code is not shorter.
  if (at <= sizeof state) return 0;
  at -= sizeof state;
  store(out, at, state);
  const std::size_t bytes = out.size() - at;
  std::memmove(out.data(), out.data() + at, bytes);
  return bytes;
}

bool read_adaptive_levels(Bytes bytes, std::int32_t levels, std::span<std::int16_t> out,
                          const LevelClasses& classes) {
  FL_ASSERT(!out.empty() && out.size() <= adaptive_levels_max);
  FL_ASSERT(levels >= 1 && levels <= rans_levels_max && classes.count <= rans_classes_max);
  std::size_t at = sizeof(std::uint32_t);
  if (bytes.size() < at) return false;
  auto state = load<std::uint32_t>(bytes);
  if (state < answer_state_min) return false;
  std::array<Questions, rans_classes_max> questions{};
  bool is_good = true;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int32_t level =
        find_level(questions[class_of(classes, i)], levels, [&](Counts& counts, const auto&) {
          const std::uint32_t probability = counts.probability();
          const std::uint32_t low = state % probability_one;
          const bool answer = low >= probability_one - probability;
          const AnswerRange range = range_of(answer, probability);
          state = range.size * (state >> probability_bits) + low - range.begin;
          if (state < answer_state_min) {
            if (bytes.size() - at < word_bytes) {
              is_good = false;
              state = answer_state_min;
            } else {
              state = state << probability_bits | load<std::uint16_t>(bytes, at);
              at += word_bytes;
            }
          }
          counts.add(answer);
          return answer;
        });
    if (!is_good) return false;
    out[i] = static_cast<std::int16_t>(level);
  }
  return state == answer_state_min && at == bytes.size();
}

}  // namespace fl::codec
