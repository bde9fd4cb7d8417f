// SPDX-License-Identifier: Apache-2.0
#include "kernels/generic/rans.hpp"

#include "kernels/isa_rows.hpp"

#include <algorithm>
#include <cstring>

namespace fl {

namespace {

// Both loops write or read a word in every step and then keep it or not, because the CPU would
// mispredict a branch on that.
//
// For whole steps the states are in a local array. If there are few lanes, the compiler keeps it in
// registers; states in memory take twice as long.

/// Encodes the symbols from `begin`, a multiple of `lanes`, to n, the last one first.
template <std::size_t lanes>
std::uint8_t* encode(const rans::Code* codes, const std::uint8_t* symbols, std::size_t begin,
                     std::size_t n, std::uint32_t* states, std::uint8_t* out) {
  const auto step = [&](std::size_t i, std::uint32_t& x) {
    const rans::Code& code = codes[symbols[i]];
    const unsigned goes = rans::is_full(x, code) ? 1 : 0;
    const auto word = static_cast<std::uint16_t>(x);
    std::memcpy(out - sizeof word, &word,
                sizeof word);  // If the word does not go out, the next one overwrites it.
    out -= goes * sizeof word;
    x = rans::push(x >> (goes * 16), code);
  };
  std::size_t i = n;
  for (; i % lanes != 0; --i) step(i - 1, states[(i - 1) % lanes]);
  std::array<std::uint32_t, lanes> x;
  std::copy_n(states, lanes, x.begin());
  for (; i > begin; i -= lanes) {
    for (std::size_t k = 1; k <= lanes; ++k) step(i - k, x[lanes - k]);
  }
  std::ranges::copy(x, states);
  return out;
}

/// Decodes the symbols from `begin`, a multiple of `lanes`, to n.
template <std::size_t lanes>
const std::uint8_t* decode(const rans::Place* places, const std::uint8_t* classes,
                           std::uint32_t* states, const std::uint8_t* in, const std::uint8_t* end,
                           std::uint8_t* symbols, std::size_t begin, std::size_t n) {
  const auto place_at = [places, classes](std::size_t symbol, std::uint32_t x) {
    const std::uint32_t table = classes == nullptr ? 0 : classes[symbol] * rans::total;
    return places[table + x % rans::total];
  };
  const auto step = [&](std::size_t i, std::uint32_t& x) {
    const rans::Place place = place_at(i, x);
    const std::uint32_t popped = rans::pop(x, place);
    std::uint16_t word;
    std::memcpy(&word, in, sizeof word);
    const unsigned comes = popped < rans::state_min ? 1 : 0;
    in += comes * sizeof word;
    x = popped << (comes * 16) | (word & (0 - comes));
    symbols[i] = static_cast<std::uint8_t>(place);
  };
  constexpr auto step_bytes = static_cast<std::ptrdiff_t>(lanes * sizeof(std::uint16_t));
  std::size_t i = begin;
  std::array<std::uint32_t, lanes> x;
  std::copy_n(states, lanes, x.begin());
  for (; i + lanes <= n && end - in >= step_bytes; i += lanes) {
    for (std::size_t k = 0; k < lanes; ++k) step(i + k, x[k]);
  }
  std::ranges::copy(x, states);
  for (; i < n && end - in >= 2; ++i) step(i, states[i % lanes]);
  for (; i < n; ++i) {  // No word is left.
    std::uint32_t& last = states[i % lanes];
    const rans::Place place = place_at(i, last);
    last = rans::pop(last, place);
    if (last < rans::state_min) return nullptr;
    symbols[i] = static_cast<std::uint8_t>(place);
  }
  return in;
}

/// The symbol whose frequency is 2^12, or -1.
int only_symbol(const RansFrequencies& frequencies) {
  const auto* const at = std::ranges::find(frequencies, rans::total);
  return at == frequencies.end() ? -1 : static_cast<int>(at - frequencies.begin());
}

}  // namespace

void count_symbols(const std::uint8_t* symbols, std::size_t n, std::uint32_t* counts) {
  // Eight tables, so that equal neighbours do not wait for the same counter.
  std::uint32_t tables[8][rans_symbols_max] = {};
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    std::uint64_t eight;
    std::memcpy(&eight, symbols + i, sizeof eight);
    for (int k = 0; k < 8; ++k) ++tables[k][eight >> (8 * k) & 0xff];
  }
  for (; i < n; ++i) ++tables[0][symbols[i]];
  for (std::size_t s = 0; s < rans_symbols_max; ++s) {
    counts[s] = 0;
    for (const auto& table : tables) counts[s] += table[s];
  }
}

std::uint8_t* rans_encode_scalar(const rans::Code* codes, const std::uint8_t* symbols,
                                 std::size_t n, std::uint32_t* states, std::uint8_t* out) {
  return encode<rans::lanes_max>(codes, symbols, 0, n, states, out);
}

const std::uint8_t* rans_decode_scalar(const rans::Place* places, const std::uint8_t* classes,
                                       std::uint32_t* states, const std::uint8_t* in,
                                       const std::uint8_t* end, std::uint8_t* symbols,
                                       std::size_t n) {
  return decode<rans::lanes_max>(places, classes, states, in, end, symbols, 0, n);
}

RansFrequencies rans_frequencies(std::span<const std::uint32_t> counts) {
  RansFrequencies out{};
  std::uint64_t sum = 0;
  for (const std::uint32_t count : counts) sum += count;
  if (sum == 0) return out;
  // Rare symbols, whose share is below 1, get 1. The others share the rest.
  std::uint64_t common = sum;
  std::int64_t left = rans::total;
  const auto is_rare = [&](std::size_t s) { return std::uint64_t{counts[s]} * rans::total < sum; };
  for (std::size_t s = 0; s < counts.size(); ++s) {
    if (counts[s] == 0 || !is_rare(s)) continue;
    out[s] = 1;
    common -= counts[s];
    --left;
  }
  const auto share = static_cast<std::uint64_t>(left);
  for (std::size_t s = 0; s < counts.size(); ++s) {
    if (is_rare(s)) continue;
    const std::uint64_t scaled = (counts[s] * share + common / 2) / common;
    out[s] = static_cast<std::uint16_t>(std::max<std::uint64_t>(1, scaled));
    left -= out[s];
  }
  // Rounding may leave some of the 2^12 or take too much. The loop adds 1 to the symbol with the
  // largest count per frequency, or takes 1 from the one with the smallest, because that costs the
  // fewest bits. It needs few steps, because each symbol was rounded by less than 1.
  while (left != 0) {
    std::size_t best = rans_symbols_max;
    for (std::size_t s = 0; s < counts.size(); ++s) {
      if (counts[s] == 0 || (left < 0 && out[s] == 1)) continue;
      if (best == rans_symbols_max) {
        best = s;
        continue;
      }
      // d(cost)/d(frequency) = count / frequency.
      const std::uint64_t here = std::uint64_t{counts[s]} * out[best];
      const std::uint64_t there = std::uint64_t{counts[best]} * out[s];
      if (left > 0 ? here > there : here < there) best = s;
    }
    out[best] = static_cast<std::uint16_t>(out[best] + (left > 0 ? 1 : -1));
    left += left > 0 ? -1 : 1;
  }
  return out;
}

std::size_t rans_encode(const std::uint8_t* symbols, std::size_t n,
                        const RansFrequencies& frequencies, std::uint8_t* out_end,
                        const Kernels& row) {
  if (only_symbol(frequencies) >= 0) return 0;
  std::array<rans::Code, rans_symbols_max> codes;
  std::uint32_t begin = 0;
  for (std::size_t s = 0; s < codes.size(); ++s) {
    if (frequencies[s] > 0) codes[s] = rans::make_code(frequencies[s], begin);
    begin = (begin + frequencies[s]) % rans::total;  // Each class starts at 0.
  }
  std::array<std::uint32_t, rans::lanes_max> states;
  states.fill(rans::state_min);
  std::uint8_t* out = out_end;
  if (rans_lanes(n) == rans::lanes_few) {
    out = encode<rans::lanes_few>(codes.data(), symbols, 0, n, states.data(), out);
  } else {
    const std::size_t whole = n - n % rans::lanes_max;
    out = encode<rans::lanes_max>(codes.data(), symbols, whole, n, states.data(), out);
    out = row.rans_encode(codes.data(), symbols, whole, states.data(), out);
  }
  const std::size_t state_bytes = rans_lanes(n) * sizeof(std::uint32_t);
  out -= state_bytes;
  std::memcpy(out, states.data(), state_bytes);
  return static_cast<std::size_t>(out_end - out);
}

bool rans_decode(const std::uint8_t* stream, std::size_t bytes, const RansFrequencies& frequencies,
                 std::uint8_t* symbols, std::size_t n, const std::uint8_t* classes,
                 const Kernels& row) {
  if (const int only = only_symbol(frequencies); only >= 0) {
    std::fill_n(symbols, n, static_cast<std::uint8_t>(only));
    return bytes == 0;
  }
  const std::size_t state_bytes = rans_lanes(n) * sizeof(std::uint32_t);
  if (bytes < state_bytes) return false;
  std::array<std::uint32_t, rans::lanes_max> states;
  states.fill(rans::state_min);
  std::memcpy(states.data(), stream, state_bytes);
  const auto is_state = [](std::uint32_t x) { return x >= rans::state_min && x < rans::state_end; };
  if (!std::ranges::all_of(states, is_state)) return false;
  std::array<rans::Place, rans_classes_max * rans::total> places;
  rans::Place* run = places.data();
  for (std::uint32_t s = 0; s < frequencies.size(); ++s) {
    const std::uint32_t frequency = frequencies[s];
    for (std::uint32_t k = 0; k < frequency; ++k) run[k] = rans::make_place(s, k, frequency);
    run += frequency;
  }
  const std::uint8_t* const end = stream + bytes;
  const std::uint8_t* in = stream + state_bytes;
  if (rans_lanes(n) == rans::lanes_few) {
    in = decode<rans::lanes_few>(places.data(), classes, states.data(), in, end, symbols, 0, n);
  } else {
    const std::size_t whole = n - n % rans::lanes_max;
    in = row.rans_decode(places.data(), classes, states.data(), in, end, symbols, whole);
    if (in == nullptr) return false;
    in = decode<rans::lanes_max>(places.data(), classes, states.data(), in, end, symbols, whole, n);
  }
  return in == end &&
         std::ranges::all_of(states, [](std::uint32_t x) { return x == rans::state_min; });
}

}  // namespace fl
