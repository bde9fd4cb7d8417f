// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/shifted_values.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace fl {

namespace {

constexpr std::size_t first_values_max = 1 << 18;
// Bounds of a column's deviation divided by its mean. Above the first, fp32 keeps at least 14 bits
// of what tells values apart, and they stay as they are. Below the second, they differ by the
// rounding of fp64.
constexpr double deviation_plain = 0x1p-10;
constexpr double deviation_noise = 0x1p-40;
constexpr double offset_max = 0x1p100;  // A value minus its offset is still finite as fp32.

/// The offset of a column of these rows; 0 where fp32 is enough.
double offset_of(std::span<const double> values, std::uint64_t columns, std::uint64_t column) {
  double sum = 0;
  double count = 0;
  bool is_exact = true;
  for (std::uint64_t i = column; i < values.size(); i += columns) {
    if (std::isnan(values[i])) continue;
    sum += values[i];
    count += 1;
    is_exact = is_exact && static_cast<double>(static_cast<float>(values[i])) == values[i];
  }
  if (is_exact) return 0;
  const double mean = sum / count;
  double squares = 0;
  for (std::uint64_t i = column; i < values.size(); i += columns) {
    if (!std::isnan(values[i])) squares += (values[i] - mean) * (values[i] - mean);
  }
  const double share = std::sqrt(squares / count) / std::abs(mean);
  const bool has_offset =
      share > deviation_noise && share < deviation_plain && std::abs(mean) < offset_max;
  return has_offset ? mean : 0;
}

}  // namespace

ShiftedValues::ShiftedValues(std::uint64_t columns, Take take)
    : columns_(columns), take_(std::move(take)), is_kept_(columns), lost_(columns) {}

Result<void> ShiftedValues::append(std::span<const double> values) {
  if (has_chosen_) return hand_on(values);
  first_.insert(first_.end(), values.begin(), values.end());
  return first_.size() < first_values_max ? success() : choose_offsets();
}

Result<void> ShiftedValues::choose_offsets() {
  has_chosen_ = true;
  offsets_.resize(columns_);
  for (std::uint64_t i = 0; i < columns_; ++i) offsets_[i] = offset_of(first_, columns_, i);
  return hand_on(std::exchange(first_, {}));
}

Result<void> ShiftedValues::hand_on(std::span<const double> values) {
  floats_.resize(values.size());
  std::ranges::transform(values, floats_.begin(), [this](double value) { return kept(value); });
  return take_(floats_);
}

/// The next value as fp32.
float ShiftedValues::kept(double value) {
  const auto number = static_cast<float>(value - offsets_[column_]);
  if (std::abs(number) > 0) is_kept_[column_] = 1;
  if (number == 0 && value != offsets_[column_]) lost_[column_] = value;
  if (++column_ == columns_) column_ = 0;
  return number;
}

Result<std::vector<double>> ShiftedValues::finish() {
  if (!has_chosen_) FL_CHECK(choose_offsets());
  const bool has_some = std::ranges::any_of(offsets_, [](double offset) { return offset != 0; });
  return has_some ? offsets_ : std::vector<double>();
}

std::optional<ShiftedValues::Vanished> ShiftedValues::vanished() const {
  for (std::uint64_t i = 0; i < columns_; ++i)
    if (lost_[i] != 0 && is_kept_[i] == 0) return Vanished{.column = i, .value = lost_[i]};
  return std::nullopt;
}

}  // namespace fl
