#include "kernels/rans.hpp"

#include <algorithm>
#include <cstring>

namespace fl {

namespace {

constexpr std::uint32_t total = 1u << rans_bits;
// A state lies in [2^16, 2^32): one word more or less is always enough to keep it there.
constexpr std::uint32_t state_min = 1u << 16;

/// What encoding a symbol takes. `inverse` is 2^64 / frequency, rounded up: with it a
/// multiplication divides 32-bit numbers exactly.
struct Step {
  std::uint64_t inverse;
  std::uint64_t state_end;  // Above or at it a word must go first.
  std::uint32_t frequency;
  std::uint32_t begin;
};

std::uint32_t divide(std::uint32_t x, const Step& step) {
  __extension__ using Wide = unsigned __int128;
  if (step.frequency == 1) return x;  // Its inverse would be 2^64.
  return static_cast<std::uint32_t>((static_cast<Wide>(step.inverse) * x) >> 64);
}

}  // namespace

RansFrequencies rans_frequencies(std::span<const std::uint32_t> counts) {
  std::uint64_t sum = 0;
  for (const std::uint32_t count : counts) sum += count;
  RansFrequencies out{};
  std::int64_t left = total;
  for (std::size_t s = 0; s < counts.size(); ++s) {
    if (counts[s] == 0) continue;
    const std::uint64_t scaled = (counts[s] * std::uint64_t{total} + sum / 2) / sum;
    out[s] = static_cast<std::uint16_t>(std::max<std::uint64_t>(1, scaled));
    left -= out[s];
  }
  // What rounding has left over or taken too much goes where it costs least: to the symbol whose
  // count per frequency is largest, from the one that has the most to spare. Few steps: each symbol
  // was rounded by less than one.
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
                        const RansFrequencies& frequencies, std::uint8_t* out_end) {
  std::array<Step, rans_symbols_max> steps;
  std::uint32_t begin = 0;
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const std::uint32_t frequency = frequencies[s];
    steps[s] = {.inverse = frequency > 1 ? ~std::uint64_t{0} / frequency + 1 : 0,
                .state_end = static_cast<std::uint64_t>(frequency) << (32 - rans_bits),
                .frequency = frequency,
                .begin = begin};
    begin += frequency;
  }
  std::array<std::uint32_t, rans_lanes> states;
  states.fill(state_min);
  std::uint8_t* out = out_end;
  for (std::size_t i = n; i-- > 0;) {
    std::uint32_t& x = states[i % rans_lanes];
    const Step& step = steps[symbols[i]];
    if (x >= step.state_end) {
      const auto word = static_cast<std::uint16_t>(x);
      out -= sizeof word;
      std::memcpy(out, &word, sizeof word);
      x >>= 16;
    }
    const std::uint32_t quotient = divide(x, step);
    x = (quotient << rans_bits) + (x - quotient * step.frequency) + step.begin;
  }
  out -= rans_state_bytes;
  std::memcpy(out, states.data(), rans_state_bytes);
  return static_cast<std::size_t>(out_end - out);
}

bool rans_decode(const std::uint8_t* stream, std::size_t bytes, const RansFrequencies& frequencies,
                 std::uint8_t* symbols, std::size_t n) {
  if (bytes < rans_state_bytes) return false;
  // Of each of the 2^12 places that a state's low bits can be: the symbol, its frequency, and how
  // far into its range the place is.
  struct Place {
    std::uint16_t frequency;
    std::uint16_t offset;
  };
  std::array<Place, total> places;
  std::array<std::uint8_t, total> symbol_at;
  std::uint32_t place = 0;
  for (std::size_t s = 0; s < frequencies.size(); ++s) {
    for (std::uint16_t k = 0; k < frequencies[s]; ++k, ++place) {
      places[place] = {.frequency = frequencies[s], .offset = k};
      symbol_at[place] = static_cast<std::uint8_t>(s);
    }
  }
  std::array<std::uint32_t, rans_lanes> states;
  std::memcpy(states.data(), stream, rans_state_bytes);
  if (std::ranges::any_of(states, [](std::uint32_t x) { return x < state_min; })) return false;
  const std::uint8_t* in = stream + rans_state_bytes;
  const std::uint8_t* const end = stream + bytes;
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t& x = states[i % rans_lanes];
    const std::uint32_t low = x % total;
    symbols[i] = symbol_at[low];
    x = places[low].frequency * (x >> rans_bits) + places[low].offset;
    if (x < state_min) {
      if (end - in < 2) return false;
      std::uint16_t word = 0;
      std::memcpy(&word, in, sizeof word);
      in += sizeof word;
      x = (x << 16) | word;
    }
  }
  return in == end && std::ranges::all_of(states, [](std::uint32_t x) { return x == state_min; });
}

}  // namespace fl
