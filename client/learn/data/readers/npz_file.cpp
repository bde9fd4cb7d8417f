// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/readers/npz_file.hpp"

#include "client/learn/data/storage_writer.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/base/printable.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace fl {

namespace {

constexpr std::size_t npy_header_bytes_max = 64 << 10;
constexpr std::size_t npy_dimensions_max = 16;
constexpr std::size_t copied_bytes = 1 << 20;
constexpr std::size_t shown_names_bytes_max = 400;
constexpr std::string_view npy_ending = ".npy";
constexpr std::string_view npy_magic = "\x93NUMPY";

/// Parses the Python literal of a header from its beginning to its end.
class HeaderText {
 public:
  explicit HeaderText(std::string_view text) : left_(text) {}

  /// Whether the next thing is `mark`, which is then taken.
  bool take(std::string_view mark) {
    skip_spaces();
    if (!left_.starts_with(mark)) return false;
    left_.remove_prefix(mark.size());
    return true;
  }
  bool quoted(std::string_view& text) {
    if (!take("'")) return false;
    const std::size_t end = left_.find('\'');
    if (end == std::string_view::npos) return false;
    text = left_.substr(0, end);
    left_.remove_prefix(end + 1);
    return true;
  }
  bool whole(std::uint64_t& number) {
    skip_spaces();
    const std::size_t digits = std::min(left_.find_first_not_of("0123456789"), left_.size());
    const auto parsed = number_in<std::uint64_t>(left_.substr(0, digits));
    if (!parsed) return false;
    number = *parsed;
    left_.remove_prefix(digits);
    take("L");  // Python 2 wrote it behind some numbers.
    return true;
  }
  bool is_over() {
    skip_spaces();
    return left_.empty();
  }

 private:
  void skip_spaces() {
    left_.remove_prefix(std::min(left_.find_first_not_of(" \n"), left_.size()));
  }

  std::string_view left_;
};

/// "(3, 4)", "(3,)" or "()".
bool parse_shape(HeaderText& text, std::vector<std::uint64_t>& shape) {
  if (!text.take("(")) return false;
  while (!text.take(")")) {
    std::uint64_t size = 0;
    if (shape.size() == npy_dimensions_max || !text.whole(size)) return false;
    shape.push_back(size);
    if (text.take(",")) continue;
    return shape.size() > 1 && text.take(")");
  }
  return true;
}

Error unsupported(std::string_view what) { return {Errc::invalid_input, std::string(what)}; }

/// Says how to convert an array whose type is not read. `kind` is numpy's dtype.kind.
std::string_view remedy_of(char kind) {
  switch (kind) {
    case 'O':
      return "its items are Python objects; make numbers or text of a fixed length of them: "
             "x.astype(float) or x.astype(str)";
    case 'c': return "its items are complex numbers; save x.real and x.imag as two columns";
    case 'M':
      return "its items are dates; make numbers of them, such as the days since a day that all "
             "members share";
    case 'm':
      return "its items are differences of times; make numbers of them: "
             "x / numpy.timedelta64(1, \"s\")";
    case 'V': return "its items are raw bytes; save x.view() of the type that they have";
    default: return "use numbers of at most 64 bits, such as x.astype(float), or text";
  }
}

/// "<f4": the order of bytes, the kind, the size of an item.
Result<void> parse_type(std::string_view type, NpyHeader& header) {
  if (type.size() < 2)
    return Error(Errc::corrupt, fmt::format("the type \"{}\" is not numpy's", printable(type)));
  if (type[0] == '>') {
    return unsupported(
        fmt::format("its numbers are big-endian (\"{}\"); write "
                    "x.astype(x.dtype.newbyteorder(\"<\"))",
                    printable(type)));
  }
  header.kind = type[1];
  const auto size = number_in<std::uint32_t>(type.substr(2));
  header.item_bytes = std::uint64_t{header.kind == 'U' ? 4U : 1U} * size.value_or(0);
  const auto is_one_of = [&](std::initializer_list<std::uint64_t> sizes) {
    return std::ranges::find(sizes, header.item_bytes) != sizes.end();
  };
  const bool is_known = (header.kind == 'b' && is_one_of({1})) ||
                        ((header.kind == 'i' || header.kind == 'u') && is_one_of({1, 2, 4, 8})) ||
                        (header.kind == 'f' && is_one_of({2, 4, 8})) ||
                        ((header.kind == 'S' || header.kind == 'U') && header.item_bytes > 0);
  if (is_known && (type[0] == '<' || type[0] == '|')) return {};
  return unsupported(
      fmt::format("its type \"{}\" is not supported: {}", printable(type), remedy_of(header.kind)));
}

std::uint32_t little_endian(std::span<const std::byte> bytes) {
  std::uint32_t number = 0;
  for (std::size_t i = bytes.size(); i > 0; --i)
    number = number << 8 | static_cast<std::uint32_t>(bytes[i - 1]);
  return number;
}

}  // namespace

Result<NpyHeader> parse_npy_header(std::string_view text) {
  const Error bad{Errc::corrupt, "the header of the array is not numpy's"};
  HeaderText left(text);
  NpyHeader header;
  std::string_view type;
  bool has_type = false;
  bool has_order = false;
  bool has_shape = false;
  if (!left.take("{")) return bad;
  while (!left.take("}")) {
    std::string_view key;
    if (!left.quoted(key) || !left.take(":")) return bad;
    if (key == "descr" && !has_type) {
      if (left.take("["))
        return unsupported("its items have fields; save one array for each field");
      has_type = left.quoted(type);
      if (!has_type) return bad;
    } else if (key == "fortran_order" && !has_order) {
      header.is_fortran = left.take("True");
      has_order = header.is_fortran || left.take("False");
      if (!has_order) return bad;
    } else if (key == "shape" && !has_shape) {
      has_shape = parse_shape(left, header.shape);
      if (!has_shape) return bad;
    } else {
      return bad;
    }
    if (left.take(",")) continue;
    if (!left.take("}")) return bad;
    break;
  }
  if (!left.is_over() || !has_type || !has_order || !has_shape) return bad;
  FL_CHECK(parse_type(type, header));
  return header;
}

Result<NpzFile> NpzFile::open(const std::filesystem::path& path, std::uint64_t memory_bytes) {
  auto archive = ZipArchive::open(path);
  if (archive) return NpzFile(path.string(), std::move(*archive), memory_bytes);
  if (archive.error().code() != Errc::corrupt) return archive.error();
  return Error(Errc::corrupt,
               fmt::format("{}: not a whole .npz file, a ZIP archive that numpy.savez() writes",
                           path.string()));
}

Error NpzFile::wrong(std::string_view what) const {
  return {Errc::corrupt, fmt::format("{}: array \"{}\": {}", path_, printable(name_), what)};
}

std::string NpzFile::names() const {
  std::string all;
  for (const auto& member : archive_.members()) {
    if (all.size() > shown_names_bytes_max) return all + ", ...";
    std::string_view name = member.name;
    if (!name.ends_with(npy_ending)) continue;
    name.remove_suffix(npy_ending.size());
    all += fmt::format("{}{}", all.empty() ? "" : ", ", printable(name, shown_names_bytes_max));
  }
  return all;
}

Result<bool> NpzFile::select(const std::string& name) {
  name_ = name;
  columns_ = {};
  const auto& members = archive_.members();
  const auto found =
      std::ranges::find(members, fmt::format("{}{}", name, npy_ending), &ZipArchive::Member::name);
  if (found == members.end()) return false;
  if (const auto selected = archive_.select(*found); !selected) return wrong(selected.error());
  FL_CHECK(read_header(found->bytes));
  const auto has_order = [](std::uint64_t size) { return size > 1; };
  if (header_.is_fortran && std::ranges::count_if(header_.shape, has_order) > 1)
    FL_CHECK(keep_columns());
  return true;
}

/// Takes an array in Fortran's order out of the archive, so that its items can be read in another.
Result<void> NpzFile::keep_columns() {
  StorageWriter writer(memory_bytes_);
  std::vector<std::byte> piece;
  for (std::uint64_t left = items_ * header_.item_bytes; left > 0; left -= piece.size()) {
    piece.resize(std::min<std::uint64_t>(copied_bytes, left));
    FL_CHECK(read_next(piece));
    FL_CHECK(writer.append(std::span<const std::byte>(piece)));
  }
  FL_CHECK(finish());
  FL_TRY(columns_, writer.finish());
  index_.assign(header_.shape.size(), 0);
  return {};
}

Result<void> NpzFile::read_header(std::uint64_t member_bytes) {
  constexpr std::size_t fixed_bytes = npy_magic.size() + 2;  // And the version.
  std::byte fixed[fixed_bytes];
  FL_CHECK(read_next(fixed));
  const std::string_view magic(reinterpret_cast<const char*>(fixed), npy_magic.size());
  if (magic != npy_magic) return wrong("it is not an array of numpy");
  const auto version = static_cast<unsigned>(fixed[npy_magic.size()]);
  if (version < 1 || version > 3)
    return wrong(fmt::format("its format has the version {}; 1 to 3 are known", version));
  std::byte length[4];
  const auto of_version = std::span(length).first(version == 1 ? 2 : 4);
  FL_CHECK(read_next(of_version));
  const std::uint32_t bytes = little_endian(of_version);
  if (bytes > npy_header_bytes_max)
    return wrong(
        fmt::format("its header has {} bytes; the limit is {}", bytes, npy_header_bytes_max));
  std::string text(bytes, '\0');
  FL_CHECK(read_next(std::as_writable_bytes(std::span(text))));
  auto header = parse_npy_header(text);
  if (!header) return wrong(header.error());
  header_ = std::move(*header);

  const std::uint64_t values_bytes = member_bytes - (fixed_bytes + of_version.size() + bytes);
  std::uint64_t all = header_.item_bytes;
  items_ = 1;
  for (const std::uint64_t size : header_.shape) {
    if (size > 0 && all > std::numeric_limits<std::uint64_t>::max() / size)
      return wrong("its shape is too large");
    all *= size;
    items_ *= size;
  }
  if (all == values_bytes) return {};
  return wrong(fmt::format("it has {} bytes, but its shape needs {}", values_bytes, all));
}

Result<void> NpzFile::read_next(std::span<std::byte> out) {
  const auto read = archive_.read(out);
  return read ? success() : Result<void>(wrong(read.error()));
}

Result<void> NpzFile::read(std::span<std::byte> out) {
  const Bytes columns = columns_.bytes();
  if (columns.empty()) return read_next(out);
  const std::uint64_t bytes = header_.item_bytes;
  FL_ASSERT(out.size() % bytes == 0);
  for (; !out.empty(); out = out.subspan(bytes)) {
    std::uint64_t at = 0;
    for (std::size_t i = index_.size(); i-- > 0;) at = at * header_.shape[i] + index_[i];
    std::memcpy(out.data(), columns.data() + at * bytes, bytes);
    for (std::size_t i = index_.size(); i-- > 0;) {
      if (++index_[i] < header_.shape[i]) break;
      index_[i] = 0;
    }
  }
  return {};
}

Result<void> NpzFile::finish() {
  if (!columns_.bytes().empty()) return {};  // It was checked as it was kept.
  const auto finished = archive_.finish();
  return finished ? success() : Result<void>(wrong(finished.error()));
}

}  // namespace fl
