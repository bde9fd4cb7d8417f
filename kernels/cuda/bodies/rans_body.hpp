// SPDX-License-Identifier: Apache-2.0
// The bodies of the kernels for rANS (cuda_rans.hpp). The threads of a warp are the 32 lanes of a
// stream; a short stream uses four of them. In each step a vote tells which lanes write or read a
// word. A lane's word comes after those of the lanes before it (Giesen 2014, arXiv:1402.3392,
// section 4).
#pragma once

#include "kernels/cuda/bodies/block.hpp"
#include "kernels/generic/rans.hpp"

#include <cstring>

namespace fl::cuda {

/// One stream of n symbols to write. It ends at `out_end`, and its length in bytes goes to `bytes`.
struct EncodeRun {
  const std::uint16_t* frequencies;  // A multiple of 16.
  std::size_t n;
  std::uint16_t* out_end;
  std::uint32_t* bytes;
};

/// One stream to read.
struct DecodeRun {
  const std::uint8_t* stream;
  std::size_t bytes;
  const std::uint16_t* frequencies;
  const std::uint8_t* classes;  // Or nullptr.
  std::uint8_t* symbols;
  std::size_t n;
  std::uint32_t* is_good;
};

/// The symbol whose frequency is 2^12, or -1.
FL_DEVICE inline int only_symbol_of(const std::uint16_t* frequencies) {
  for (int s = 0; s < rans_symbols_max; ++s) {
    if (frequencies[s] == rans::total) return s;
  }
  return -1;
}

/// Symbols that a thread moves at once: symbol i is byte i, from the lowest of the first word on.
struct alignas(16) SymbolGroup {
  std::uint32_t words[4];
};
inline constexpr std::size_t group_symbols = sizeof(SymbolGroup);

/// Requires: `from` or `to` is a multiple of 16.
FL_DEVICE inline SymbolGroup load_group(const std::uint8_t* from) {
#ifdef __CUDACC__
  return *reinterpret_cast<const SymbolGroup*>(from);  // One access of 128 bits.
#else
  SymbolGroup out;
  std::memcpy(&out, from, sizeof out);
  return out;
#endif
}
FL_DEVICE inline void store_group(std::uint8_t* to, const SymbolGroup& group) {
#ifdef __CUDACC__
  *reinterpret_cast<SymbolGroup*>(to) = group;
#else
  std::memcpy(to, &group, sizeof group);
#endif
}

/// Symbols that are staged at once: each lane moves a group.
inline constexpr std::size_t tile_symbols = rans::lanes_max * group_symbols;

/// The shared memory of encode_stream().
struct EncodeMemory {
  rans::Code codes[rans_symbols_max];
  alignas(16) std::uint8_t staged[2][tile_symbols];
  std::uint32_t sums[rans::lanes_max];  // For each lane, of its symbols' frequencies.
};

/// Symbols as they lie in memory, for encode_stream(). `from` is a multiple of 16.
struct PlainSymbols {
  const std::uint8_t* from;

  FL_DEVICE std::uint32_t at(std::size_t i) const { return from[i]; }
  /// The group from symbol i on, a multiple of group_symbols. All its symbols must be there.
  FL_DEVICE SymbolGroup group(std::size_t i) const { return load_group(from + i); }
};

/// The frequencies of the eight symbols that a lane makes codes for.
struct LaneFrequencies {
  static constexpr unsigned count = rans_symbols_max / rans::lanes_max;
  SymbolGroup pairs;

  FL_DEVICE std::uint32_t operator[](unsigned k) const {
    return pairs.words[k / 2] >> k % 2 * 16 & 0xffff;
  }
};

/// Fills shared.codes. False: one symbol has the frequency 2^12, so the stream has no bytes.
/// `frequencies` is a multiple of 16.
template <class Block>
FL_DEVICE inline bool make_codes(const Block& warp, const std::uint16_t* frequencies,
                                 EncodeMemory& shared) {
  typename Block::template PerThread<LaneFrequencies> own;
  const std::uint32_t only = warp.ballot([&](unsigned lane) {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(frequencies);
    own[lane].pairs = load_group(bytes + lane * sizeof(SymbolGroup));
    std::uint32_t sum = 0;
    std::uint32_t largest = 0;
    FL_UNROLL
    for (unsigned k = 0; k < LaneFrequencies::count; ++k) {
      sum += own[lane][k];
      largest = own[lane][k] > largest ? own[lane][k] : largest;
    }
    shared.sums[lane] = sum;
    return largest == rans::total;
  });
  if (only != 0) return false;
  warp.each([&](unsigned lane) {
    std::uint32_t begin = 0;
    for (unsigned before = 0; before < lane; ++before) begin += shared.sums[before];
    FL_UNROLL
    for (unsigned k = 0; k < LaneFrequencies::count; ++k) {
      begin %= rans::total;  // Each class starts at 0.
      const std::uint32_t frequency = own[lane][k];
      if (frequency > 0)
        shared.codes[lane * LaneFrequencies::count + k] = rans::make_code(frequency, begin);
      begin += frequency;
    }
  });
  return true;
}

/// A warp's lanes while they write a stream from its end.
template <class Block>
struct EncodeLanes {
  std::uint16_t* out;  // The last word that is written, or the stream's end.
  typename Block::template PerThread<std::uint32_t> x;
  typename Block::template PerThread<bool> is_full;

  /// Whether this lane has a word to write before it pushes a symbol with this code.
  FL_DEVICE bool finds_full(unsigned lane, const rans::Code& code) {
    is_full[lane] = rans::is_full(x[lane], code);
    return is_full[lane];
  }
  /// Writes this lane's word, if it has one, after those of the lanes before it, and pushes. Bit l
  /// of `full` says whether lane l has a word. No step waits for the vote but the place of a word.
  FL_DEVICE void push(unsigned lane, std::uint32_t full, const rans::Code& code) {
    std::uint16_t* const place = out - Block::ones(full >> lane);
    if (is_full[lane]) *place = static_cast<std::uint16_t>(x[lane]);
    x[lane] = rans::push(is_full[lane] ? x[lane] >> 16 : x[lane], code);
  }
};

/// Pushes the symbols [begin, end), the last one first. `begin` is a multiple of the lanes.
template <class Block, class Symbols>
FL_DEVICE inline void push_symbols(const Block& warp, const Symbols& symbols, std::size_t begin,
                                   std::size_t end, std::size_t lanes, const EncodeMemory& shared,
                                   EncodeLanes<Block>& states) {
  typename Block::template PerThread<std::uint32_t> symbol;
  for (std::size_t at = (end + lanes - 1) / lanes * lanes; at > begin;) {
    at -= lanes;
    const auto is_active = [&](unsigned lane) { return lane < lanes && at + lane < end; };
    const std::uint32_t full = warp.ballot([&](unsigned lane) {
      if (!is_active(lane)) return false;
      symbol[lane] = symbols.at(at + lane);
      return states.finds_full(lane, shared.codes[symbol[lane]]);
    });
    warp.each([&](unsigned lane) {
      if (is_active(lane)) states.push(lane, full, shared.codes[symbol[lane]]);
    });
    states.out -= Block::ones(full);
  }
}

/// Pushes the first `tiles` tiles, the last one first, in 32 lanes. A step waits for the state of
/// the step before and for nothing else: symbols come into shared memory a tile ahead, and into
/// registers two steps ahead, and their codes one step ahead.
template <class Block, class Symbols>
FL_DEVICE inline void push_tiles(const Block& warp, const Symbols& symbols, std::size_t tiles,
                                 EncodeMemory& shared, EncodeLanes<Block>& states) {
  if (tiles == 0) return;
  typename Block::template PerThread<SymbolGroup> ahead;
  typename Block::template PerThread<rans::Code> code;       // The code of this step's symbol.
  typename Block::template PerThread<std::uint32_t> symbol;  // The next step's symbol.
  const auto load = [&](unsigned lane, std::size_t tile) {
    ahead[lane] = symbols.group(tile * tile_symbols + lane * group_symbols);
  };
  warp.each([&](unsigned lane) { load(lane, tiles - 1); });
  for (std::size_t tile = tiles; tile-- > 0;) {
    std::uint8_t* const staged = shared.staged[tile % 2];
    warp.each([&](unsigned lane) {
      store_group(staged + lane * group_symbols, ahead[lane]);
      if (tile > 0) load(lane, tile - 1);
    });
    const auto symbol_at = [&](unsigned lane, unsigned step) {
      return std::uint32_t{staged[step * rans::lanes_max + lane]};
    };
    constexpr unsigned steps = tile_symbols / rans::lanes_max;
    warp.each([&](unsigned lane) {
      code[lane] = shared.codes[symbol_at(lane, steps - 1)];
      symbol[lane] = symbol_at(lane, steps - 2);
    });
    FL_UNROLL
    for (unsigned step = steps; step-- > 0;) {
      const std::uint32_t full =
          warp.ballot([&](unsigned lane) { return states.finds_full(lane, code[lane]); });
      warp.each([&](unsigned lane) {
        const rans::Code now = code[lane];
        if (step > 0) code[lane] = shared.codes[symbol[lane]];
        if (step > 1) symbol[lane] = symbol_at(lane, step - 2);
        states.push(lane, full, now);
      });
      states.out -= Block::ones(full);
    }
  }
}

/// rans_encode() of the stream of symbols.at(0), symbols.at(1) and so on.
template <class Block, class Symbols>
FL_DEVICE inline void encode_stream(const Block& warp, const EncodeRun& run, EncodeMemory& shared,
                                    const Symbols& symbols) {
  EncodeLanes<Block> states{.out = run.out_end, .x = {}, .is_full = {}};
  if (make_codes(warp, run.frequencies, shared)) {
    warp.each([&](unsigned lane) { states.x[lane] = rans::state_min; });
    const std::size_t lanes = rans_lanes(run.n);
    const std::size_t tiles = lanes == rans::lanes_max ? run.n / tile_symbols : 0;
    push_symbols(warp, symbols, tiles * tile_symbols, run.n, lanes, shared, states);
    push_tiles(warp, symbols, tiles, shared, states);
    states.out -= 2 * lanes;
    warp.each([&](unsigned lane) {
      if (lane >= lanes) return;
      states.out[2 * lane] = static_cast<std::uint16_t>(states.x[lane]);
      states.out[2 * lane + 1] = static_cast<std::uint16_t>(states.x[lane] >> 16);
    });
  }
  warp.each([&](unsigned lane) {
    if (lane == 0) *run.bytes = static_cast<std::uint32_t>((run.out_end - states.out) * 2);
  });
}

FL_DEVICE inline std::uint32_t load_word(const std::uint8_t* from) {
  return from[0] | static_cast<std::uint32_t>(from[1]) << 8;
}

/// Decodes a stream and returns whether it is valid. `places` is shared memory for 2^12 places of
/// each class.
template <class Block>
FL_DEVICE inline bool is_decoded(const Block& warp, const DecodeRun& run, rans::Place* places) {
  if (const int only = only_symbol_of(run.frequencies); only >= 0) {
    warp.each([&](unsigned lane) {
      for (std::size_t i = lane; i < run.n; i += 32) {
        run.symbols[i] = static_cast<std::uint8_t>(only);
      }
    });
    return run.bytes == 0;
  }
  const std::size_t lanes = rans_lanes(run.n);
  if (run.bytes < lanes * sizeof(std::uint32_t)) return false;
  typename Block::template PerThread<std::uint32_t> x;
  const std::uint32_t bad = warp.ballot([&](unsigned lane) {
    x[lane] = rans::state_min;
    if (lane >= lanes) return false;
    const std::uint8_t* at = run.stream + lane * sizeof(std::uint32_t);
    x[lane] = load_word(at) | load_word(at + 2) << 16;
    return x[lane] < rans::state_min || x[lane] >= rans::state_end;
  });
  if (bad != 0) return false;
  warp.each([&](unsigned lane) {
    rans::Place* begin = places;
    for (std::uint32_t s = 0; s < rans_symbols_max; ++s) {
      const std::uint32_t frequency = run.frequencies[s];
      for (std::uint32_t k = lane; k < frequency; k += 32) {
        begin[k] = rans::make_place(s, k, frequency);
      }
      begin += frequency;
    }
  });
  const std::uint8_t* const end = run.stream + run.bytes;
  const std::uint8_t* in = run.stream + lanes * sizeof(std::uint32_t);
  for (std::size_t begin = 0; begin < run.n; begin += lanes) {
    const std::uint32_t comes = warp.ballot([&](unsigned lane) {
      const std::size_t i = begin + lane;
      if (lane >= lanes || i >= run.n) return false;
      const std::uint32_t table = run.classes == nullptr ? 0 : run.classes[i] * rans::total;
      const rans::Place place = places[table + x[lane] % rans::total];
      x[lane] = rans::pop(x[lane], place);
      run.symbols[i] = static_cast<std::uint8_t>(place);
      return x[lane] < rans::state_min;
    });
    const std::ptrdiff_t step_bytes = 2 * static_cast<std::ptrdiff_t>(Block::ones(comes));
    if (end - in < step_bytes) return false;
    warp.each([&](unsigned lane) {
      if ((comes >> lane) % 2 == 0) return;
      const std::uint32_t before = comes & ((1u << lane) - 1);
      x[lane] = x[lane] << 16 | load_word(in + 2 * Block::ones(before));
    });
    in += step_bytes;
  }
  const std::uint32_t unfinished =
      warp.ballot([&](unsigned lane) { return x[lane] != rans::state_min; });
  return in == end && unfinished == 0;
}

/// rans_decode() of one stream.
template <class Block>
FL_DEVICE inline void decode_stream(const Block& warp, const DecodeRun& run, rans::Place* places) {
  const bool is_good = is_decoded(warp, run, places);
  warp.each([&](unsigned lane) {
    if (lane == 0) *run.is_good = is_good ? 1 : 0;
  });
}

}  // namespace fl::cuda
