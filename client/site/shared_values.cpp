// SPDX-License-Identifier: Apache-2.0
#include "client/site/shared_values.hpp"

#include "client/learn/process/socket_line.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <fcntl.h>
#include <unistd.h>
#include <cerrno>

namespace fl::site {

Result<SharedValues> SharedValues::map(int file, const std::filesystem::path& path,
                                       std::size_t count) {
  if (count == 0) return SharedValues();
  void* const at =
      ::mmap(nullptr, count * sizeof(float), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at == MAP_FAILED) return errno_error("can't map " + path.string());
  return SharedValues(std::span(static_cast<float*>(at), count));
}

Result<SharedValues> SharedValues::make(const std::filesystem::path& path, std::size_t count) {
  ::unlink(path.c_str());
  const Descriptor file(
      ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.number() < 0) return errno_error(path.string());
  // Takes the room now: writing to a mapped file on a full disk would end the program.
  const auto bytes = static_cast<off_t>(count * sizeof(float));
  if (const int failed = count == 0 ? 0 : ::posix_fallocate(file.number(), 0, bytes); failed != 0) {
    errno = failed;
    return errno_error(path.string());
  }
  return map(file.number(), path, count);
}

Result<SharedValues> SharedValues::open(const std::filesystem::path& path, std::size_t count) {
  const Descriptor file(::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (file.number() < 0) return errno_error(path.string());
  struct stat found {};
  if (::fstat(file.number(), &found) != 0) return errno_error(path.string());
  if (static_cast<std::size_t>(found.st_size) != count * sizeof(float)) {
    return Error(Errc::corrupt, fmt::format("{} has {} bytes, not {}", path.string(), found.st_size,
                                            count * sizeof(float)));
  }
  return map(file.number(), path, count);
}

Result<SharedValues> SharedValues::make_unshared(std::size_t count) {
  if (count == 0) return SharedValues();
  void* const at = ::mmap(nullptr, count * sizeof(float), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return errno_error(fmt::format("can't map memory for {} values", count));
  return SharedValues(std::span(static_cast<float*>(at), count));
}

SharedValues::~SharedValues() {
  if (!values_.empty()) ::munmap(values_.data(), values_.size_bytes());
}

}  // namespace fl::site
