// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/dataset.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <numeric>

namespace fl {

namespace {

/// The entries of `all` for these examples, `each` of one; nothing if there are none.
template <class Value>
std::vector<Value> chosen(const std::vector<Value>& all, std::span<const std::uint32_t> indices,
                          std::uint32_t each = 1) {
  if (all.empty()) return {};
  std::vector<Value> some;
  some.reserve(indices.size() * each);
  for (const std::uint32_t index : indices) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(std::size_t{index} * each);
    some.insert(some.end(), first, first + each);
  }
  return some;
}

}  // namespace

std::uint64_t DataSet::row_elements() const {
  return static_cast<std::uint64_t>(
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

std::uint64_t DataSet::row_bytes() const {
  return row_elements() * (kind == Kind::values ? sizeof(float) : 1);
}

std::uint32_t DataSet::size() const {
  if (kind == Kind::text) return static_cast<std::uint32_t>(pieces.size());
  return static_cast<std::uint32_t>(inputs.bytes().size() / row_bytes());
}

std::span<const std::byte> DataSet::row(std::uint64_t example) const {
  if (kind == Kind::text) {
    const TextPiece& piece = pieces[example];
    return inputs.bytes().subspan(piece.begin * token_bytes,
                                  std::size_t{piece.length} * token_bytes);
  }
  return inputs.bytes().subspan(example * row_bytes(), row_bytes());
}

DataSet DataSet::select(std::span<const std::uint32_t> indices) const {
  DataSet some = *this;
  std::vector<std::byte> rows;
  some.pieces.clear();
  for (const std::uint32_t index : indices) {
    const auto one = row(index);
    if (kind == Kind::text)
      some.pieces.push_back({rows.size() / token_bytes, pieces[index].length});
    rows.insert(rows.end(), one.begin(), one.end());
  }
  some.inputs = Storage(std::move(rows));
  some.labels = chosen(labels, indices);
  some.targets = chosen(targets, indices, outputs);
  some.groups = chosen(groups, indices);
  some.example_names = chosen(example_names, indices);
  some.example_heading = example_heading;
  return some;
}

std::string data_shape_text(const DataSet& set) {
  if (set.kind == DataSet::Kind::text)
    return set.token_bytes == 1 ? "text" : fmt::format("text, tokens to {}", set.vocabulary - 1);
  std::string text = shape_text(set.shape);
  text += set.kind == DataSet::Kind::pixels ? " pixels" : " values";
  if (!set.labels.empty()) {
    text += fmt::format(", {} classes", set.classes);
  } else if (set.outputs > 0) {
    text += fmt::format(", {} target{}", set.outputs, set.outputs == 1 ? "" : "s");
  }
  return text;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("{}", fmt::join(shape, "x"));
}

}  // namespace fl
