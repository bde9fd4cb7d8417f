// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/readers/npz_file.hpp"

#include "shared/base/io/bytes.hpp"
#include "shared/base/printable.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>
#include <minizip/unzip.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

namespace fl {

namespace {

constexpr std::size_t npy_header_bytes_max = 64 << 10;
constexpr std::size_t npy_dimensions_max = 16;
constexpr std::size_t zip_read_bytes_max = 1 << 20;
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

/// "<f4": the order of bytes, the kind, the size of an item.
Result<void> parse_type(std::string_view type, NpyHeader& header) {
  const auto size = number_in<std::uint32_t>(type.size() > 2 ? type.substr(2) : "");
  if (type.size() < 3 || !size)
    return Error(Errc::corrupt, fmt::format("the type \"{}\" is not numpy's", printable(type)));
  if (type[0] == '>') {
    return unsupported(
        fmt::format("its numbers are big-endian (\"{}\"); write "
                    "x.astype(x.dtype.newbyteorder(\"<\"))",
                    printable(type)));
  }
  header.kind = type[1];
  header.item_bytes = header.kind == 'U' ? std::uint64_t{4} * *size : *size;
  const auto is_one_of = [&](std::initializer_list<std::uint64_t> sizes) {
    return std::ranges::find(sizes, header.item_bytes) != sizes.end();
  };
  const bool is_known = (header.kind == 'b' && is_one_of({1})) ||
                        ((header.kind == 'i' || header.kind == 'u') && is_one_of({1, 2, 4, 8})) ||
                        (header.kind == 'f' && is_one_of({2, 4, 8})) ||
                        ((header.kind == 'S' || header.kind == 'U') && header.item_bytes > 0);
  if (is_known && (type[0] == '<' || type[0] == '|')) return {};
  return unsupported(
      fmt::format("its type \"{}\" is not supported; use numbers, or text of a fixed "
                  "length (not objects)",
                  printable(type)));
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
  bool is_fortran = false;
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
      is_fortran = left.take("True");
      has_order = is_fortran || left.take("False");
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
  if (is_fortran) return unsupported("it is in Fortran order; write numpy.ascontiguousarray(x)");
  return header;
}

void NpzFile::Close::operator()(void* archive) const noexcept { unzClose(archive); }

Result<NpzFile> NpzFile::open(const std::filesystem::path& path) {
  // minizip says nothing about why a file can't be opened.
  std::error_code failed;
  const auto status = std::filesystem::status(path, failed);
  if (status.type() == std::filesystem::file_type::not_found)
    return Error(Errc::not_found, fmt::format("no file {}", path.string()));
  if (status.type() == std::filesystem::file_type::directory)
    return Error(Errc::io, fmt::format("{} is a folder, not a file", path.string()));
  // minizip would wait for what comes out of a pipe.
  if (!failed && status.type() != std::filesystem::file_type::regular)
    return Error(Errc::io, fmt::format("{} is no file: give a file", path.string()));
  errno = 0;
  void* const archive = unzOpen64(path.c_str());
  if (archive == nullptr && errno == EACCES)
    return errno_error(fmt::format("open {}", path.string()));
  if (archive == nullptr) {
    return Error(Errc::corrupt,
                 fmt::format("{}: not a whole .npz file (a ZIP archive)", path.string()));
  }
  return NpzFile(path.string(), archive);
}

Error NpzFile::wrong(std::string_view what) const {
  return {Errc::corrupt, fmt::format("{}: array \"{}\": {}", path_, printable(name_), what)};
}

Result<bool> NpzFile::select(const std::string& name) {
  name_ = name;
  unzCloseCurrentFile(archive_.get());
  const std::string member = name + ".npy";
  constexpr int with_case = 1;
  const int found = unzLocateFile(archive_.get(), member.c_str(), with_case);
  if (found == UNZ_END_OF_LIST_OF_FILE) return false;
  unz_file_info64 info{};
  if (found != UNZ_OK ||
      unzGetCurrentFileInfo64(archive_.get(), &info, nullptr, 0, nullptr, 0, nullptr, 0) != UNZ_OK)
    return wrong("the directory of the file is damaged");
  constexpr uLong encrypted = 1;
  if ((info.flag & encrypted) != 0) return wrong("it is encrypted");
  if (info.compression_method != 0 && info.compression_method != Z_DEFLATED)
    return wrong("it is compressed by another method than numpy's");
  if (unzOpenCurrentFile(archive_.get()) != UNZ_OK) return wrong("it is damaged");
  FL_CHECK(read_header(info.uncompressed_size));
  return true;
}

Result<void> NpzFile::read_header(std::uint64_t member_bytes) {
  constexpr std::size_t fixed_bytes = npy_magic.size() + 2;  // And the version.
  std::byte fixed[fixed_bytes];
  FL_CHECK(read(fixed));
  const std::string_view magic(reinterpret_cast<const char*>(fixed), npy_magic.size());
  if (magic != npy_magic) return wrong("it is not an array of numpy");
  const auto version = static_cast<unsigned>(fixed[npy_magic.size()]);
  if (version < 1 || version > 3)
    return wrong(fmt::format("its format has the version {}; 1 to 3 are known", version));
  std::byte length[4];
  const auto of_version = std::span(length).first(version == 1 ? 2 : 4);
  FL_CHECK(read(of_version));
  const std::uint32_t bytes = little_endian(of_version);
  if (bytes > npy_header_bytes_max)
    return wrong(
        fmt::format("its header has {} bytes; the limit is {}", bytes, npy_header_bytes_max));
  std::string text(bytes, '\0');
  FL_CHECK(read(std::as_writable_bytes(std::span(text))));
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

Result<void> NpzFile::read(std::span<std::byte> out) {
  while (!out.empty()) {
    const auto piece = std::min(out.size(), zip_read_bytes_max);
    const int got = unzReadCurrentFile(archive_.get(), out.data(), static_cast<unsigned>(piece));
    if (got <= 0) return wrong(got == 0 ? "it ends too early" : "it is damaged");
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

Result<void> NpzFile::finish() {
  if (unzCloseCurrentFile(archive_.get()) == UNZ_OK) return {};
  return wrong("it is damaged: its checksum does not fit");
}

}  // namespace fl
