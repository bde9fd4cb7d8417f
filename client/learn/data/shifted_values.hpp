// SPDX-License-Identifier: Apache-2.0
// ShiftedValues: turns values that a reader has in fp64 into fp32. Where fp32 would lose what tells
// a column's values apart (times since 1970, map coordinates), it keeps what remains after an
// offset, which is one for the column. The first values decide which columns have one. One thread
// at a time.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace fl {

class ShiftedValues {
 public:
  using Take = std::function<Result<void>(std::span<const float>)>;
  /// A column in which every value that is not 0 is too small for fp32, and one of these values.
  struct Vanished {
    std::uint64_t column = 0;
    double value = 0;
  };

  /// `columns` values make a row. `take` gets the fp32 values, in order.
  ShiftedValues(std::uint64_t columns, Take take);

  /// The next values, row by row; a piece may end within a row. Each is NaN, or fp32 can hold it.
  /// Errors: those of `take`.
  [[nodiscard]] Result<void> append(std::span<const double> values);
  /// Hands on what is left, and returns the offset of each column: a value is the offset plus the
  /// fp32 value. Empty if no column has one. Errors: those of `take`.
  [[nodiscard]] Result<std::vector<double>> finish();
  /// Ask after finish().
  [[nodiscard]] std::optional<Vanished> vanished() const;

 private:
  Result<void> choose_offsets();
  Result<void> hand_on(std::span<const double> values);
  float kept(double value);

  std::uint64_t columns_;
  Take take_;
  std::vector<double> first_;  // The first values, until the offsets are chosen.
  bool has_chosen_ = false;
  std::vector<double> offsets_;
  std::uint64_t column_ = 0;           // The column of the next value.
  std::vector<std::uint8_t> is_kept_;  // Whether fp32 holds a value of the column other than 0.
  std::vector<double> lost_;           // A value of the column that has become 0; 0 without one.
  std::vector<float> floats_;
};

}  // namespace fl
