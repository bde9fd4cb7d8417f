// SPDX-License-Identifier: Apache-2.0
// Philox4x32-7: random words as a pure function of (key, counter). So element i of a vector gets
// the same word in any order and on any device. Any thread. Salmon, Moraes, Dror, Shaw: "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011, section 3.3. Seven rounds pass all of BigCrush.
// More rounds would make stochastic rounding slower.
//
// The functions have internal linkage on purpose: one program compiles this header with different
// machine options, and the linker must not choose one copy for all.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define FL_HOST_DEVICE __host__ __device__
#else
#define FL_HOST_DEVICE
#endif

namespace fl::philox {

inline constexpr std::uint32_t multiplier_0 = 0xD2511F53;
inline constexpr std::uint32_t multiplier_1 = 0xCD9E8D57;
inline constexpr std::uint32_t key_step_0 = 0x9E3779B9;
inline constexpr std::uint32_t key_step_1 = 0xBB67AE85;
inline constexpr int rounds = 7;

struct Block {
  std::uint32_t word[4];
};

/// The four random words of a counter.
FL_HOST_DEVICE static inline Block generate(Block counter, std::uint32_t key_0,
                                            std::uint32_t key_1) {
  std::uint32_t* x = counter.word;
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t product_0 = std::uint64_t{multiplier_0} * x[0];
    const std::uint64_t product_1 = std::uint64_t{multiplier_1} * x[2];
    x[0] = static_cast<std::uint32_t>(product_1 >> 32) ^ x[1] ^ key_0;
    x[1] = static_cast<std::uint32_t>(product_1);
    x[2] = static_cast<std::uint32_t>(product_0 >> 32) ^ x[3] ^ key_1;
    x[3] = static_cast<std::uint32_t>(product_0);
    key_0 += key_step_0;
    key_1 += key_step_1;
  }
  return counter;
}

/// Element i of a stream has one Philox word. Elements come in lines of 32, each made from eight
/// counters. Element 8*j + k of a line is word j of the line's counter k, so that eight SIMD lanes
/// produce a line in order without a shuffle.
inline constexpr std::uint64_t line_elements = 32;

FL_HOST_DEVICE static inline std::uint64_t counter_of(std::uint64_t element) {
  return element / line_elements * 8 + element % 8;
}
FL_HOST_DEVICE static inline unsigned word_of(std::uint64_t element) {
  return static_cast<unsigned>(element / 8 % 4);
}

/// The block of a counter of a stream. The key is the seed, and the counter is (index, stream).
FL_HOST_DEVICE static inline Block block_at(std::uint64_t seed, std::uint64_t stream,
                                            std::uint64_t index) {
  const Block counter{{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
                       static_cast<std::uint32_t>(stream),
                       static_cast<std::uint32_t>(stream >> 32)}};
  return generate(counter, static_cast<std::uint32_t>(seed),
                  static_cast<std::uint32_t>(seed >> 32));
}

/// If 16 random bits are enough, a line has 64 elements, and each word serves two of them. The
/// lower half of word 8 * j + k is for element 16 * j + k, the upper half for element 16 * j + k
/// + 8.
inline constexpr std::uint64_t half_line_elements = 64;

FL_HOST_DEVICE static inline std::uint32_t half_word_at(std::uint64_t seed, std::uint64_t stream,
                                                        std::uint64_t element) {
  const Block block = block_at(seed, stream, element / half_line_elements * 8 + element % 8);
  const std::uint32_t word = block.word[element % half_line_elements / 16];
  return element % 16 < 8 ? word & 0xffff : word >> 16;
}

/// How many of the n elements from `first` on come before the next line starts.
static inline std::size_t before_line(std::uint64_t first, std::size_t n) {
  const std::size_t left = (line_elements - first % line_elements) % line_elements;
  return left < n ? left : n;
}

/// The keys of all rounds for one seed, computed once for a run. A SIMD row's V has a type Words, a
/// register of 64-bit lanes, and all_lanes(x), which puts x in each lane.
template <class V>
struct RoundKeys {
  typename V::Words key_0[rounds];
  typename V::Words key_1[rounds];

  explicit RoundKeys(std::uint64_t seed) {
    auto now_0 = static_cast<std::uint32_t>(seed);
    auto now_1 = static_cast<std::uint32_t>(seed >> 32);
    for (int round = 0; round < rounds; ++round) {
      key_0[round] = V::all_lanes(now_0);
      key_1[round] = V::all_lanes(now_1);
      now_0 += key_step_0;
      now_1 += key_step_1;
    }
  }
};

/// Writes the 32 words of the elements from 32 * line on.
static inline void fill_line(std::uint64_t seed, std::uint64_t stream, std::uint64_t line,
                             std::uint32_t* words) {
  for (std::uint64_t k = 0; k < 8; ++k) {
    const Block block = block_at(seed, stream, line * 8 + k);
    for (std::uint64_t j = 0; j < 4; ++j) words[8 * j + k] = block.word[j];
  }
}

}  // namespace fl::philox
