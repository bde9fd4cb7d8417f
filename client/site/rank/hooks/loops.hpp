// SPDX-License-Identifier: Apache-2.0
// Loops of hooks over gradients in the memory of the CPU. Each function reads its input once, where
// operations of libtorch would make a tensor of each step between. Pure; any thread. The results
// are those of the operations that the comments name, bit for bit, on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fl::site {

/// Whether a[i] + b[i] is finite for all i. Both have the same length.
[[nodiscard]] bool sums_are_finite(std::span<const float> a, std::span<const float> b);
/// Whether no value has all bits of `exponent`, as infinity and NaN of a 16-bit format have.
[[nodiscard]] bool none_has_exponent(std::span<const std::uint16_t> values, std::uint16_t exponent);

/// The indices of the k values with the largest magnitudes, ascending; of equal ones the first.
/// indices.size() is k, at most values.size(), which is below 2^31.
void find_largest_values(std::span<const float> values, std::span<std::int32_t> indices);

/// How a row of values became codes of 8 bits: value = scale * (code - zero).
struct CodeRange {
  float scale = 0;
  float zero = 0;  // A whole number, 0 to 255.
};
/// Chooses the range as PyTorch's MinMaxObserver does for quint8. Requires: all values are finite.
[[nodiscard]] CodeRange code_range_of(std::span<const float> row);
/// codes[i] = clamp(round(row[i] / scale) + zero, 0, 255), to the nearest even.
void to_codes(std::span<const float> row, const CodeRange& range, std::uint8_t* codes);
/// A row as one rank has coded it.
struct CodedRow {
  const std::uint8_t* codes;
  CodeRange range;
};
/// The ranks' values, added up in their order, divided by their number.
void mean_of_codes(std::span<const CodedRow> of_ranks, std::span<float> mean);

/// Values as their signs and one scale, by one rank (kernels().pack_signs()).
struct SignedRow {
  const std::uint8_t* bits;
  float scale;
};
/// The ranks' values, added up in their order, divided by their number.
void mean_of_signs(std::span<const SignedRow> of_ranks, std::span<float> mean);
/// Subtracts the row's value from each values[i].
void subtract_signs(const SignedRow& row, std::span<float> values);

/// sum[i] += values[i].
void add_values(std::span<const float> values, std::span<float> sum);
/// out[i] = a[i] - b[i].
void subtract_values(std::span<const float> a, std::span<const float> b, std::span<float> out);
/// out[i] = values[i] + keep * residual[i], product and sum each rounded.
void add_kept(std::span<const float> values, std::span<const float> residual, float keep,
              std::span<float> out);

}  // namespace fl::site
