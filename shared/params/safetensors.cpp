// SPDX-License-Identifier: Apache-2.0
#include "shared/params/safetensors.hpp"

#include "kernels/kernels.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"
#include "shared/params/header_scanner.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <tuple>
#include <unordered_map>

namespace fl {

namespace {

constexpr std::size_t length_bytes = 8;

Error corrupt(std::string message) { return {Errc::corrupt, "safetensors: " + message}; }

/// The name of the format that a file with these first bytes has, if people take it for
/// safetensors; else "".
std::string foreign_format(std::string_view head) {
  using namespace std::string_view_literals;
  // The zip that torch.save() writes begins with the entry NAME/data.pkl. Before PyTorch 1.6 it
  // wrote pickles, the first of which is this number.
  const bool is_zip = head.starts_with("PK\x03\x04");
  const bool is_pytorch =
      (is_zip && head.find("/data.pkl") != head.npos) ||
      head.substr(0, 14) == "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv;
  if (is_pytorch) {
    return "it is a file of PyTorch's torch.save(), not safetensors. If it holds a state_dict, "
           "these two lines of Python convert it: `import torch, safetensors.torch as st` and "
           "`st.save_file({k: v.clone().contiguous() for k, v in torch.load(\"FILE.pt\", "
           "map_location=\"cpu\", weights_only=True).items()}, \"FILE.safetensors\")`";
  }
  const bool is_pickle = head.size() > 1 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5;
  const std::string_view kind = is_zip && head.find(".npy") != head.npos ? "a NumPy archive"
                                : is_zip                                 ? "a zip archive"
                                : is_pickle                              ? "a Python pickle"
                                : head.starts_with("\x93NUMPY")          ? "a NumPy array"
                                : head.starts_with("\x89HDF")            ? "an HDF5 file"
                                : head.starts_with("GGUF")               ? "a GGUF file"
                                                                         : "";
  if (kind.empty()) return "";
  return fmt::format(
      "it is {}, not safetensors: save the weights with safetensors.torch.save_file "
      "or safetensors.numpy.save_file",
      kind);
}

/// The error for a file with these first bytes, which are not those of safetensors.
Error other_format(std::string_view head) {
  if (const auto what = foreign_format(head); !what.empty())
    return Error(Errc::invalid_input, what);
  constexpr std::size_t shown_bytes = 16;
  return corrupt(fmt::format("it is no safetensors file: it begins with \"{}\"",
                             printable(head.substr(0, shown_bytes))));
}

constexpr std::size_t piece_elements = 64 << 10;  // Elements that are converted at a time.

struct ElementTypeRow {
  ElementType type;
  std::string_view name;
  std::uint64_t bytes;
};
constexpr std::array<ElementTypeRow, 4> element_types{{{ElementType::f32, "F32", 4},
                                                       {ElementType::f16, "F16", 2},
                                                       {ElementType::bf16, "BF16", 2},
                                                       {ElementType::f64, "F64", 8}}};

const ElementTypeRow& row_of(ElementType type) {
  return *std::ranges::find(element_types, type, &ElementTypeRow::type);
}

std::uint64_t bytes_of_type(ElementType type) { return row_of(type).bytes; }

// Puts the tensors in the order of their data, which must fill the file without gaps or overlaps.
Result<SafetensorsInfo> arrange(std::vector<HeaderEntry> entries, std::uint64_t data_begin,
                                std::uint64_t data_bytes) {
  // By name where empty tensors lie at the same place.
  std::ranges::sort(entries, {}, [](const HeaderEntry& e) {
    return std::tuple<std::uint64_t, std::uint64_t, std::string_view>(e.begin, e.end, e.spec.name);
  });
  std::vector<TensorSpec> specs;
  specs.reserve(entries.size());
  for (const HeaderEntry& entry : entries) {
    if (entry.type) specs.push_back(entry.spec);
  }
  auto layout = Layout::make(specs);
  if (!layout) return layout.error().at("safetensors");

  SafetensorsInfo info;
  info.layout = std::move(*layout);
  std::uint64_t expected = 0;
  for (const HeaderEntry& entry : entries) {
    const std::uint64_t bytes =
        entry.type ? info.layout.tensors()[info.types.size()].elements * bytes_of_type(*entry.type)
                   : sizeof(std::int64_t);
    if (entry.begin != expected || entry.end != expected + bytes) {
      return corrupt(fmt::format("tensor {} is at bytes {} to {}, expected {} to {}",
                                 entry.spec.name, entry.begin, entry.end, expected,
                                 expected + bytes));
    }
    expected = entry.end;
    if (!entry.type) continue;
    info.types.push_back(*entry.type);
    info.begin.push_back(data_begin + entry.begin);
  }
  if (expected != data_bytes) {
    return corrupt(
        fmt::format("the tensors have {} bytes, but the file has {}", expected, data_bytes));
  }
  return info;
}

/// Converts stored elements to fp32. `stored` holds out.size() elements of the type.
void from_type(ElementType type, Bytes stored, std::span<float> out) {
  const auto* const words = reinterpret_cast<const std::uint16_t*>(stored.data());
  switch (type) {
    case ElementType::f32: std::memcpy(out.data(), stored.data(), out.size_bytes()); return;
    case ElementType::f16: kernels().from_half(words, out.size(), out.data()); return;
    case ElementType::bf16: kernels().from_bf16(words, out.size(), out.data()); return;
    case ElementType::f64:
      for (std::size_t i = 0; i < out.size(); ++i) {
        double value = 0;
        std::memcpy(&value, stored.data() + i * sizeof value, sizeof value);
        out[i] = static_cast<float>(value);
      }
      return;
  }
}

/// Converts fp32 to stored elements. `stored` has room for values.size() elements of the type.
void to_type(ElementType type, std::span<const float> values, MutableBytes stored) {
  auto* const words = reinterpret_cast<std::uint16_t*>(stored.data());
  switch (type) {
    case ElementType::f32: std::memcpy(stored.data(), values.data(), values.size_bytes()); return;
    case ElementType::f16: kernels().to_half(values.data(), values.size(), words); return;
    case ElementType::bf16: kernels().to_bf16(values.data(), values.size(), words); return;
    case ElementType::f64:
      for (std::size_t i = 0; i < values.size(); ++i) {
        const double value = values[i];
        std::memcpy(stored.data() + i * sizeof value, &value, sizeof value);
      }
      return;
  }
}

Result<void> read_tensor(File& file, ElementType type, std::uint64_t begin, std::span<float> out) {
  if (type == ElementType::f32) return file.read_exactly(begin, std::as_writable_bytes(out));
  const std::size_t size = bytes_of_type(type);
  // The room is aligned for every type.
  std::vector<double> room(std::min(piece_elements, out.size()));
  while (!out.empty()) {
    const std::size_t n = std::min(room.size(), out.size());
    const auto piece = std::as_writable_bytes(std::span(room)).first(n * size);
    FL_CHECK(file.read_exactly(begin, piece));
    from_type(type, piece, out.first(n));
    begin += piece.size();
    out = out.subspan(n);
  }
  return {};
}

// For each tensor of `wanted`, its index in the file. The error lists the first few mismatches.
Result<std::vector<std::size_t>> match(const Layout& wanted, const Layout& found,
                                       const std::function<bool(const std::string&)>& may_be_left) {
  std::unordered_map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < found.tensors().size(); ++i) {
    by_name.emplace(found.tensors()[i].name, i);
  }
  std::vector<std::string> misfits;
  std::vector<std::size_t> indices;
  for (const Layout::Tensor& tensor : wanted.tensors()) {
    const auto place = by_name.find(tensor.name);
    if (place == by_name.end()) {
      misfits.push_back(fmt::format("{} is missing", tensor.name));
      continue;
    }
    const auto& shape = found.tensors()[place->second].shape;
    if (shape != tensor.shape) {
      misfits.push_back(fmt::format("{} has shape [{}], expected [{}]", tensor.name,
                                    fmt::join(shape, ", "), fmt::join(tensor.shape, ", ")));
    }
    indices.push_back(place->second);
    by_name.erase(place);
  }
  for (const Layout::Tensor& tensor : found.tensors()) {
    if (by_name.contains(tensor.name) && !(may_be_left && may_be_left(tensor.name)))
      misfits.push_back(tensor.name + " is not in the model");
  }
  if (misfits.empty()) return indices;
  constexpr std::size_t misfits_shown_max = 5;
  const std::size_t shown = std::min(misfits.size(), misfits_shown_max);
  std::string message =
      fmt::format("safetensors: {}", fmt::join(misfits.begin(), misfits.begin() + shown, "; "));
  if (misfits.size() > shown) message += fmt::format("; and {} more", misfits.size() - shown);
  return Error(Errc::invalid_input, std::move(message));
}

/// Neighbours of one type both in a layout and in a file. They are read at once, because a model
/// may have many small tensors.
struct Run {
  ElementType type{};
  std::uint64_t begin = 0;  // In the file, in bytes.
  std::uint64_t first = 0;  // In the layout, in elements.
  std::uint64_t elements = 0;
};

/// Calls read(run) for all tensors of `wanted`. An error of it gets the run's first tensor.
template <class Read>
Result<void> for_each_run(File& file, const Layout& wanted,
                          const std::function<bool(const std::string&)>& may_be_left,
                          const Read& read) {
  FL_TRY(const SafetensorsInfo info, read_safetensors_header(file));
  FL_TRY(const std::vector<std::size_t> indices, match(wanted, info.layout, may_be_left));
  for (std::size_t t = 0; t < indices.size();) {
    const Layout::Tensor& first = wanted.tensors()[t];
    Run run{info.types[indices[t]], info.begin[indices[t]], first.offset, 0};
    std::uint64_t end = run.begin;
    for (;
         t < indices.size() && info.types[indices[t]] == run.type && info.begin[indices[t]] == end;
         ++t) {
      end += info.layout.tensors()[indices[t]].elements * bytes_of_type(run.type);
      run.elements += wanted.tensors()[t].elements;
    }
    if (auto done = read(run); !done) return done.error().at(first.name);
  }
  return {};
}

}  // namespace

std::optional<ElementType> parse_element_type(std::string_view text) {
  const auto row = std::ranges::find(element_types, text, &ElementTypeRow::name);
  return row == element_types.end() ? std::nullopt : std::optional(row->type);
}

std::string safetensors_header(const Layout& layout, const Metadata& metadata,
                               std::size_t alignment, std::span<const ElementType> types) {
  FL_ASSERT(alignment > 0 && alignment % length_bytes == 0);
  FL_ASSERT(types.empty() || types.size() == layout.tensors().size());
  // Written piece by piece, as a tree of JSON values for 65,536 tensors takes much longer.
  std::string text = "{";
  if (!metadata.empty()) {
    auto entries = nlohmann::ordered_json::object();
    for (const auto& [key, value] : metadata) entries[key] = value;
    text += fmt::format("\"{}\":{}", safetensors_metadata_key, json_text(entries));
  }
  std::uint64_t begin = 0;
  for (std::size_t t = 0; t < layout.tensors().size(); ++t) {
    const Layout::Tensor& tensor = layout.tensors()[t];
    const ElementTypeRow& type = row_of(types.empty() ? ElementType::f32 : types[t]);
    const std::uint64_t end = begin + tensor.elements * type.bytes;
    fmt::format_to(std::back_inserter(text),
                   R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                   text.size() == 1 ? "" : ",", json_text(nlohmann::json(tensor.name)), type.name,
                   fmt::join(tensor.shape, ","), begin, end);
    begin = end;
  }
  text += '}';
  const std::size_t data_begin =
      (length_bytes + text.size() + alignment - 1) / alignment * alignment;
  std::string out(data_begin, ' ');
  store<std::uint64_t>(std::as_writable_bytes(std::span(out)), 0, data_begin - length_bytes);
  std::ranges::copy(text, out.begin() + length_bytes);
  return out;
}

Result<void> write_safetensors(File& file, const Layout& layout, std::span<const float> values,
                               std::span<const ElementType> types, const Metadata& metadata) {
  FL_ASSERT(values.size() == layout.elements() && types.size() == layout.tensors().size());
  const std::string header =
      safetensors_header(layout, metadata, safetensors_data_alignment, types);
  FL_CHECK(file.write_at(0, bytes_of(std::string_view(header))));
  std::uint64_t end = header.size();
  std::vector<double> room(std::min<std::size_t>(piece_elements, values.size()));
  for (std::size_t t = 0; t < types.size();) {
    // Neighbours of one type are written at once: a model may have many small tensors.
    const ElementType type = types[t];
    const std::uint64_t first = layout.tensors()[t].offset;
    std::uint64_t elements = 0;
    for (; t < types.size() && types[t] == type; ++t) elements += layout.tensors()[t].elements;
    auto left = values.subspan(first, elements);
    while (!left.empty()) {
      const bool is_as_it_is = type == ElementType::f32;
      const auto part = is_as_it_is ? left : left.first(std::min(room.size(), left.size()));
      const auto piece = std::as_writable_bytes(std::span(room));
      const std::size_t bytes = part.size() * bytes_of_type(type);
      if (!is_as_it_is) to_type(type, part, piece);
      FL_CHECK(file.write_at(end, is_as_it_is ? std::as_bytes(part) : Bytes(piece.first(bytes))));
      end += bytes;
      left = left.subspan(part.size());
    }
  }
  return file.truncate(end);
}

Result<void> replace_safetensors(Files& files, const std::filesystem::path& path,
                                 const Layout& layout, std::span<const float> values,
                                 const Metadata& metadata) {
  return files.replace(path, [&](File& file) {
    const std::vector<ElementType> fp32(layout.tensors().size(), ElementType::f32);
    return write_safetensors(file, layout, values, fp32, metadata);
  });
}

void round_to_types(const Layout& layout, std::span<const ElementType> types, std::uint64_t first,
                    std::span<float> values) {
  FL_ASSERT(first + values.size() <= layout.elements() && types.size() == layout.tensors().size());
  std::vector<std::uint16_t> room;
  const std::uint64_t end = first + values.size();
  const auto begins_after = [](std::uint64_t element, const Layout::Tensor& tensor) {
    return element < tensor.offset;
  };
  const auto& tensors = layout.tensors();
  auto tensor = std::upper_bound(tensors.begin(), tensors.end(), first, begins_after);
  if (tensor != tensors.begin()) --tensor;  // It has the first element.
  for (; tensor != tensors.end() && tensor->offset < end; ++tensor) {
    const ElementType type = types[static_cast<std::size_t>(tensor - tensors.begin())];
    if (type == ElementType::f32 || type == ElementType::f64) continue;
    const std::uint64_t from = std::max(first, tensor->offset);
    const std::uint64_t to = std::min(end, tensor->offset + tensor->elements);
    if (from >= to) continue;
    const auto part = values.subspan(from - first, to - from);
    room.resize(part.size());
    const auto stored = std::as_writable_bytes(std::span(room));
    to_type(type, part, stored);
    from_type(type, stored, part);
  }
}

Result<SafetensorsInfo> read_safetensors_header(File& file) {
  FL_TRY(const std::uint64_t file_bytes, file.size());
  std::uint64_t header_bytes = 0;
  if (file_bytes < length_bytes) return corrupt("the file is shorter than eight bytes");
  FL_CHECK(file.read_exactly(0, std::as_writable_bytes(std::span(&header_bytes, 1))));
  if (header_bytes >
      std::min<std::uint64_t>(file_bytes - length_bytes, safetensors_header_bytes_max)) {
    std::string head(256, '\0');
    FL_TRY(const std::size_t got, file.read_at(0, std::as_writable_bytes(std::span(head))));
    head.resize(got);
    if (!head.substr(length_bytes).starts_with('{')) return other_format(head);
    if (header_bytes > file_bytes - length_bytes) {
      return corrupt(
          fmt::format("the file ends within its header: it has {} bytes, and the header "
                      "{}; copy it again",
                      file_bytes, header_bytes));
    }
    return Error(Errc::too_large, fmt::format("safetensors: a header of {} bytes; the limit is {}",
                                              header_bytes, safetensors_header_bytes_max));
  }
  std::string text(header_bytes, '\0');
  FL_CHECK(file.read_exactly(length_bytes, std::as_writable_bytes(std::span(text))));

  auto scanned = scan_safetensors_header(text);
  if (!scanned) return scanned.error().at("safetensors");
  const std::uint64_t data_begin = length_bytes + header_bytes;
  FL_TRY(SafetensorsInfo info,
         arrange(std::move(scanned->entries), data_begin, file_bytes - data_begin));
  info.metadata = std::move(scanned->metadata);
  return info;
}

Result<void> check_tensors(const SafetensorsInfo& info, const Layout& wanted,
                           const std::function<bool(const std::string&)>& may_be_left) {
  FL_TRY([[maybe_unused]] const auto indices, match(wanted, info.layout, may_be_left));
  return {};
}

Result<void> read_safetensors(File& file, const Layout& wanted, std::span<float> out,
                              const std::function<bool(const std::string&)>& may_be_left) {
  FL_ASSERT(out.size() == wanted.elements());
  return for_each_run(file, wanted, may_be_left, [&](const Run& run) {
    return read_tensor(file, run.type, run.begin, out.subspan(run.first, run.elements));
  });
}

Result<void> read_safetensors_pieces(File& file, const Layout& wanted, const WriteValues& take) {
  std::vector<float> room;
  return for_each_run(file, wanted, nullptr, [&](const Run& run) -> Result<void> {
    for (std::uint64_t at = 0; at < run.elements; at += room.size()) {
      room.resize(
          static_cast<std::size_t>(std::min<std::uint64_t>(piece_elements, run.elements - at)));
      FL_CHECK(read_tensor(file, run.type, run.begin + at * bytes_of_type(run.type), room));
      FL_CHECK(take(run.first + at, room));
    }
    return {};
  });
}

}  // namespace fl
