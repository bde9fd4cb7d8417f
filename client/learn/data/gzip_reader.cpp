// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/gzip_reader.hpp"

#include "shared/base/io/file.hpp"

#include <fmt/format.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace fl {

namespace {

constexpr unsigned gzip_buffer_bytes = 256 << 10;
constexpr std::size_t read_bytes_max = 1 << 30;  // zlib counts in an int.

}  // namespace

Result<GzipReader> GzipReader::open(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return errno_error(fmt::format("open {}", path.string()));
  if (auto regular = expect_regular(descriptor, path); !regular) {
    ::close(descriptor);
    return regular.error();
  }
  errno = 0;
  gzFile file = gzdopen(descriptor, "rb");
  if (file == nullptr) {
    const Error error = errno_error(fmt::format("open {}", path.string()));
    ::close(descriptor);
    return error;
  }
  gzbuffer(file, gzip_buffer_bytes);
  return GzipReader(path.string(), file);
}

Result<std::size_t> GzipReader::read_some(std::span<std::uint8_t> out) {
  std::size_t filled = 0;
  while (filled < out.size()) {
    const auto piece = static_cast<unsigned>(std::min(out.size() - filled, read_bytes_max));
    const int got = gzread(file_.get(), out.data() + filled, piece);
    if (got < 0) return broken();
    filled += static_cast<std::size_t>(got);
    offset_ += static_cast<std::uint64_t>(got);
    if (static_cast<unsigned>(got) == piece) continue;
    if (is_broken()) return broken();
    break;
  }
  return filled;
}

Result<void> GzipReader::read(std::span<std::uint8_t> out, std::string_view what) {
  FL_TRY(const std::size_t got, read_some(out));
  if (got == out.size()) return {};
  return corrupt(fmt::format("the file ends at byte {}, within {}", offset_, what));
}

Result<void> GzipReader::expect_end() {
  std::uint8_t extra;
  const int got = gzread(file_.get(), &extra, 1);
  if (got > 0) return corrupt(fmt::format("the file has extra bytes after byte {}", offset_));
  if (got < 0 || is_broken()) return broken();
  return {};
}

Error GzipReader::corrupt(std::string_view what) const {
  return {Errc::corrupt, fmt::format("{}: {}", path_, what)};
}

// For a truncated gzip stream gzread returns the data before the end; only gzerror reports it.
bool GzipReader::is_broken() const {
  int code = Z_OK;
  gzerror(file_.get(), &code);
  return code != Z_OK;
}

Error GzipReader::broken() const {
  int code = Z_OK;
  const char* text = gzerror(file_.get(), &code);
  if (code == Z_ERRNO) return errno_error(fmt::format("read {}", path_));
  return corrupt(
      fmt::format("broken gzip stream near byte {} of its contents ({})", offset_, text));
}

}  // namespace fl
