// SPDX-License-Identifier: Apache-2.0
// The bodies of the kernels for rANS (cuda_rans.hpp). The threads of a warp are the 32 lanes of a
// stream; a short stream uses four of them. In each step a vote tells which lanes write or read a
// word. A lane's word comes after those of the lanes before it (Giesen 2014, arXiv:1402.3392,
// section 4).
#pragma once

#include "kernels/cuda/bodies/block.hpp"
#include "kernels/generic/rans.hpp"

namespace fl::cuda {

/// One stream of n symbols to write. It ends at `out_end`, and its length in bytes goes to `bytes`.
struct EncodeRun {
  const std::uint16_t* frequencies;
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

/// rans_encode() of the stream of symbol_at(0), symbol_at(1) and so on. `codes` is shared memory
/// for rans_symbols_max.
template <class Block, class SymbolAt>
FL_DEVICE inline void encode_stream(const Block& warp, const EncodeRun& run, rans::Code* codes,
                                    const SymbolAt& symbol_at) {
  std::uint16_t* out = run.out_end;
  if (only_symbol_of(run.frequencies) < 0) {
    warp.each([&](unsigned lane) {
      std::uint32_t begin = 0;
      for (unsigned s = 0; s < rans_symbols_max; ++s) {
        const std::uint32_t frequency = run.frequencies[s];
        if (s % 32 == lane && frequency > 0) codes[s] = rans::make_code(frequency, begin);
        begin = (begin + frequency) % rans::total;  // Each class starts at 0.
      }
    });
    typename Block::template PerThread<std::uint32_t> x;
    typename Block::template PerThread<std::uint32_t> symbol;
    warp.each([&](unsigned lane) { x[lane] = rans::state_min; });
    const std::size_t lanes = rans_lanes(run.n);
    for (std::size_t begin = (run.n + lanes - 1) / lanes * lanes; begin > 0;) {
      begin -= lanes;
      const auto is_active = [&](unsigned lane) { return lane < lanes && begin + lane < run.n; };
      const std::uint32_t full = warp.ballot([&](unsigned lane) {
        if (!is_active(lane)) return false;
        symbol[lane] = symbol_at(begin + lane);
        return rans::is_full(x[lane], codes[symbol[lane]]);
      });
      warp.each([&](unsigned lane) {
        if (!is_active(lane)) return;
        const std::uint32_t at_or_above = full >> lane;
        if (at_or_above % 2 != 0) {
          *(out - Block::ones(at_or_above)) = static_cast<std::uint16_t>(x[lane]);
          x[lane] >>= 16;
        }
        x[lane] = rans::push(x[lane], codes[symbol[lane]]);
      });
      out -= Block::ones(full);
    }
    out -= 2 * lanes;
    warp.each([&](unsigned lane) {
      if (lane >= lanes) return;
      out[2 * lane] = static_cast<std::uint16_t>(x[lane]);
      out[2 * lane + 1] = static_cast<std::uint16_t>(x[lane] >> 16);
    });
  }
  warp.each([&](unsigned lane) {
    if (lane == 0) *run.bytes = static_cast<std::uint32_t>((run.out_end - out) * 2);
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
