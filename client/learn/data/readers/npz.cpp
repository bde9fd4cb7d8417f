// SPDX-License-Identifier: Apache-2.0
// npz:FILE: arrays that numpy saved: x, y or those that options name, and one more if by:NAME
// names it.
#include "client/learn/data/kept_bytes.hpp"
#include "client/learn/data/readers/group_names.hpp"
#include "client/learn/data/readers/npz_file.hpp"
#include "client/learn/data/readers/reader_options.hpp"
#include "client/learn/data/shifted_values.hpp"
#include "client/learn/data/storage_writer.hpp"
#include "kernels/kernels.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

namespace fl {

namespace {

constexpr std::string_view npz_usage = "npz:FILE[,x=NAME,y=NAME]";
constexpr std::size_t chunk_items = 64 << 10;
constexpr std::size_t chunk_bytes = 1 << 20;

std::string shape_of(const NpyHeader& header) {
  return fmt::format("({})", fmt::join(header.shape, ", "));
}

bool is_number(const NpyHeader& header) {
  return header.kind == 'b' || header.kind == 'i' || header.kind == 'u' || header.kind == 'f';
}

template <class Number>
void convert(std::span<const std::byte> from, std::span<double> to) {
  for (std::size_t i = 0; i < to.size(); ++i) {
    Number number;
    std::memcpy(&number, from.data() + i * sizeof(Number), sizeof(Number));
    to[i] = static_cast<double>(number);
  }
}

void convert_half(std::span<const std::byte> from, std::span<double> to) {
  std::vector<std::uint16_t> halves(to.size());
  std::memcpy(halves.data(), from.data(), from.size());
  std::vector<float> floats(to.size());
  kernels().from_half(halves.data(), halves.size(), floats.data());
  std::ranges::copy(floats, to.begin());
}

using Convert = void (*)(std::span<const std::byte>, std::span<double>);

Convert converter(const NpyHeader& header) {
  const bool is_signed = header.kind == 'i';
  if (header.kind == 'f') {
    return header.item_bytes == 2   ? convert_half
           : header.item_bytes == 4 ? convert<float>
                                    : convert<double>;
  }
  switch (header.item_bytes) {
    case 1: return is_signed ? convert<std::int8_t> : convert<std::uint8_t>;
    case 2: return is_signed ? convert<std::int16_t> : convert<std::uint16_t>;
    case 4: return is_signed ? convert<std::int32_t> : convert<std::uint32_t>;
    default: return is_signed ? convert<std::int64_t> : convert<std::uint64_t>;
  }
}

/// Reads an array of numbers, a chunk at a time, and has fp32 values of them taken. Returns the
/// offset of each value of an example, as ShiftedValues::finish() does.
Result<std::vector<double>> read_values(NpzFile& file, const ShiftedValues::Take& take) {
  const std::uint64_t per_example = file.items() / file.header().shape.front();
  const Convert to_doubles = converter(file.header());
  ShiftedValues shifted(per_example, take);
  std::vector<std::byte> bytes;
  std::vector<double> values;
  for (std::uint64_t at = 0; at < file.items(); at += values.size()) {
    values.resize(std::min<std::uint64_t>(chunk_items, file.items() - at));
    bytes.resize(values.size() * file.header().item_bytes);
    FL_CHECK(file.read(bytes));
    to_doubles(bytes, values);
    const auto large = std::ranges::find_if(
        values, [](double value) { return std::isinf(static_cast<float>(value)); });
    if (large != values.end()) {
      const std::uint64_t item = at + static_cast<std::uint64_t>(large - values.begin());
      return file.wrong(
          fmt::format("example {} has the value {:.3g}; a value is at most 3.4e38: divide such "
                      "values by a number that all members share",
                      item / per_example, *large));
    }
    FL_CHECK(shifted.append(values));
  }
  FL_CHECK(file.finish());
  FL_TRY(auto offsets, shifted.finish());
  const auto lost = shifted.vanished();
  if (!lost) return offsets;
  return file.wrong(
      fmt::format("value {} of each example is too small, such as {:.3g}; multiply "
                  "it by a number that all members share",
                  lost->column + 1, lost->value));
}

Result<Storage> read_pixels(NpzFile& file, std::uint64_t memory_bytes) {
  StorageWriter writer(memory_bytes);
  std::vector<std::byte> bytes;
  for (std::uint64_t left = file.items(); left > 0; left -= bytes.size()) {
    bytes.resize(std::min<std::uint64_t>(chunk_bytes, left));
    FL_CHECK(file.read(bytes));
    FL_CHECK(writer.append(std::span<const std::byte>(bytes)));
  }
  FL_CHECK(file.finish());
  return writer.finish();
}

/// The size of one example, and what the array is: pixels or values.
Result<DataSet> describe(const NpzFile& file) {
  const NpyHeader& header = file.header();
  const auto& shape = header.shape;
  if (!is_number(header)) return file.wrong("it is text; inputs must be numbers");
  if (shape.empty() || file.items() == 0)
    return file.wrong(fmt::format("its shape is {}: there is no example", shape_of(header)));
  if (shape.front() > examples_max || file.items() / shape.front() > row_elements_max) {
    return file.wrong(fmt::format("its shape is {}; the limits are {} examples of {} values",
                                  shape_of(header), examples_max, row_elements_max));
  }
  DataSet set;
  set.shape.assign(shape.begin() + 1, shape.end());
  if (set.shape.empty()) set.shape = {1};
  const bool is_image =
      header.kind == 'u' && header.item_bytes == 1 && (shape.size() == 3 || shape.size() == 4);
  if (!is_image) return set;
  set.kind = DataSet::Kind::pixels;
  if (shape.size() == 3) set.shape.insert(set.shape.begin(), 1);
  const auto can_be_channels = [](std::int64_t size) {
    return size == 1 || size == 3 || size == 4;
  };
  if (!can_be_channels(set.shape[0]) && can_be_channels(set.shape[2])) {
    return file.wrong(
        fmt::format("its shape is {}, but channels come before rows and columns; "
                    "write x.transpose(0, 3, 1, 2)",
                    shape_of(header)));
  }
  return set;
}

Result<DataSet> read_inputs(NpzFile& file, std::uint64_t memory_bytes) {
  FL_TRY(DataSet set, describe(file));
  if (set.kind == DataSet::Kind::pixels) {
    FL_TRY(set.inputs, read_pixels(file, memory_bytes));
    return set;
  }
  StorageWriter writer(memory_bytes);
  FL_TRY(set.input_offsets, read_values(file, [&writer](std::span<const float> values) {
           return writer.append(values);
         }));
  FL_TRY(set.inputs, writer.finish());
  return set;
}

/// The array must have a row for each example.
Result<void> expect_examples(const NpzFile& file, std::uint64_t examples) {
  if (!file.header().shape.empty() && file.header().shape.front() == examples) return {};
  return file.wrong(
      fmt::format("its shape is {}, but x has {} examples", shape_of(file.header()), examples));
}

Result<void> read_targets(NpzFile& file, DataSet& set, KeptBytes& kept) {
  FL_CHECK(expect_examples(file, set.size()));
  const NpyHeader& header = file.header();
  if (!is_number(header))
    return file.wrong("it is text; number the classes: numpy.unique(y, return_inverse=True)[1]");
  const std::uint64_t outputs = file.items() / set.size();
  if (header.shape.size() > 2 || outputs == 0 || outputs > row_elements_max) {
    return file.wrong(fmt::format("its shape is {}; it must be ({}) or ({}, k)", shape_of(header),
                                  set.size(), set.size()));
  }
  set.outputs = static_cast<std::uint32_t>(outputs);
  FL_CHECK(kept.add(file.items() * (sizeof(float) + sizeof(std::uint32_t))));
  const auto take = [&](std::span<const float> values) -> Result<void> {
    const auto none = std::ranges::find_if(values, [](float value) { return std::isnan(value); });
    if (none != values.end()) {
      const auto item = set.targets.size() + static_cast<std::size_t>(none - values.begin());
      return file.wrong(fmt::format("the target of example {} is NaN", item / outputs));
    }
    set.targets.insert(set.targets.end(), values.begin(), values.end());
    return {};
  };
  FL_TRY(set.target_offsets, read_values(file, take));
  const bool are_classes = header.kind != 'f' && outputs == 1 && set.target_offsets.empty() &&
                           std::ranges::all_of(set.targets, [](float value) {
                             return value >= 0 && value < static_cast<float>(classes_max);
                           });
  if (!are_classes) return {};
  for (const float value : set.targets) set.labels.push_back(static_cast<std::uint32_t>(value));
  set.classes = std::ranges::max(set.labels) + 1;
  return {};
}

void append_utf8(std::string& text, std::uint32_t point) {
  if (point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) point = 0xfffd;
  if (point < 0x80) {
    text += static_cast<char>(point);
    return;
  }
  const int more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
  constexpr std::uint32_t leads[] = {0xc0, 0xe0, 0xf0};
  text += static_cast<char>(leads[more - 1] | point >> (6 * more));
  for (int i = more - 1; i >= 0; --i) text += static_cast<char>(0x80 | (point >> (6 * i) & 0x3f));
}

/// An item as the name of a group: text without the zeros at its end, or the number.
std::string name_of(std::span<const std::byte> item, const NpyHeader& header) {
  std::string name;
  if (header.kind == 'S') {
    name.assign(reinterpret_cast<const char*>(item.data()), item.size());
  } else if (header.kind == 'U') {
    std::vector<std::uint32_t> points(item.size() / sizeof(std::uint32_t));
    std::memcpy(points.data(), item.data(), item.size());
    while (!points.empty() && points.back() == 0) points.pop_back();
    for (const std::uint32_t point : points) append_utf8(name, point);
    return name;
  } else {
    std::uint64_t number = 0;
    std::memcpy(&number, item.data(), item.size());
    const unsigned unused = 64 - 8 * static_cast<unsigned>(item.size());
    if (header.kind != 'i') return std::to_string(number);
    return std::to_string(static_cast<std::int64_t>(number << unused) >> unused);
  }
  name.resize(name.find_last_not_of('\0') + 1);
  return name;
}

Result<void> read_groups(NpzFile& file, DataSet& set, KeptBytes& kept) {
  FL_CHECK(expect_examples(file, set.size()));
  const NpyHeader& header = file.header();
  if (header.kind == 'f' || file.items() != set.size()) {
    return file.wrong(
        fmt::format("it can't divide the examples: it must have the shape ({}), and "
                    "be text or whole numbers",
                    set.size()));
  }
  if (header.item_bytes > 4 * group_name_bytes_max)
    return file.wrong(fmt::format("its texts have more than {} characters", group_name_bytes_max));
  FL_CHECK(kept.add(file.items() * sizeof(std::uint32_t)));
  GroupNames groups;
  std::vector<std::byte> item(header.item_bytes);
  for (std::uint32_t i = 0; i < set.size(); ++i) {
    FL_CHECK(file.read(item));
    const std::string name = name_of(item, header);
    if (name.empty()) return file.wrong(fmt::format("the text of example {} is empty", i));
    if (const auto added = groups.add(name); !added) return file.wrong(added.error());
  }
  groups.finish(set);
  return file.finish();
}

/// Goes to an array that must be there.
Result<void> select_needed(NpzFile& file, const std::string& name, std::string_view why) {
  FL_TRY(const bool found, file.select(name));
  if (found) return {};
  return file.wrong(fmt::format("it is missing; {}; the file has: {}", why, file.names()));
}

}  // namespace

Result<DataSet> read_npz(const DataRequest& request) {
  FL_TRY(ReaderOptions options, ReaderOptions::parse(request, npz_usage));
  std::string inputs = options.text("x");
  std::string targets = options.text("y");
  FL_CHECK(options.finish());
  if (inputs.empty()) inputs = "x";
  if (targets.empty()) targets = "y";
  if (request.group == inputs || request.group == targets) {
    return wrong_data(request,
                      fmt::format("by: must name another array than {} and {}", inputs, targets));
  }
  FL_TRY(NpzFile file, NpzFile::open(options.path(), request.memory_bytes));
  FL_CHECK(select_needed(file, inputs, "name the array of inputs: x=NAME"));
  FL_TRY(DataSet set, read_inputs(file, request.memory_bytes));
  if (request.to_predict) return set;
  FL_CHECK(select_needed(file, targets, "name the array of targets: y=NAME"));
  KeptBytes kept = KeptBytes::beside(request.memory_bytes);
  FL_CHECK(read_targets(file, set, kept));
  if (request.group.empty()) return set;
  FL_CHECK(select_needed(file, std::string(request.group), "by: needs it"));
  FL_CHECK(read_groups(file, set, kept));
  return set;
}

}  // namespace fl
