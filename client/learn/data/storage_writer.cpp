// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/storage_writer.hpp"

#include "shared/base/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace fl {

namespace {

constexpr std::uint64_t first_room_bytes = 1 << 20;
constexpr std::size_t pending_bytes_max = 1 << 20;

/// A file without a name: it is gone when nobody has it open or mapped any more.
int open_nameless(const std::filesystem::path& folder) {
  const int file = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return file;
  // A file system without such files.
  std::string name = (folder / "tributary-data-XXXXXX").string();
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

}  // namespace

std::uint64_t data_memory_default() { return this_machine().memory_bytes / 4; }

std::filesystem::path scratch_folder() {
  const char* folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/var/tmp";
}

// Memory that grows without being copied, or a mapped file.
class StorageWriter::Mapping {
 public:
  Mapping() = default;
  ~Mapping() {
    if (at_ != nullptr) ::munmap(at_, room_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  /// Gives it this size; false means that there is no memory, with errno.
  bool resize(std::uint64_t room) {
    void* const at = at_ == nullptr ? ::mmap(nullptr, room, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                                    : ::mremap(at_, room_, room, MREMAP_MAYMOVE);
    return take(at, room);
  }
  bool map(int file, std::uint64_t bytes) {
    return take(::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0), bytes);
  }
  [[nodiscard]] std::byte* at() const { return static_cast<std::byte*>(at_); }
  [[nodiscard]] std::uint64_t room() const { return room_; }

 private:
  bool take(void* at, std::uint64_t room) {
    if (at == MAP_FAILED) return false;
    at_ = at;
    room_ = room;
    return true;
  }

  void* at_ = nullptr;
  std::uint64_t room_ = 0;
};

StorageWriter::StorageWriter(std::uint64_t memory_bytes_max, std::filesystem::path folder)
    : memory_bytes_max_(memory_bytes_max == 0 ? data_memory_default() : memory_bytes_max),
      folder_(std::move(folder)),
      memory_(std::make_unique<Mapping>()) {}

StorageWriter::~StorageWriter() {
  if (file_ >= 0) ::close(file_);
}

StorageWriter::StorageWriter(StorageWriter&& other) noexcept
    : memory_bytes_max_(other.memory_bytes_max_),
      folder_(std::move(other.folder_)),
      memory_(std::move(other.memory_)),
      file_(std::exchange(other.file_, -1)),
      pending_(std::move(other.pending_)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Result<void> StorageWriter::append(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {};
  if (file_ < 0 && bytes.size() > memory_bytes_max_ - std::min(bytes_, memory_bytes_max_))
    FL_CHECK(move_to_disk());
  if (file_ < 0) {
    FL_CHECK(make_room(bytes_ + bytes.size()));
    std::memcpy(memory_->at() + bytes_, bytes.data(), bytes.size());
  } else {
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
    if (pending_.size() >= pending_bytes_max) FL_CHECK(write_pending());
  }
  bytes_ += bytes.size();
  return {};
}

// Pages that nobody has touched cost nothing, so the room may double.
Result<void> StorageWriter::make_room(std::uint64_t bytes) {
  if (bytes <= memory_->room()) return {};
  const std::uint64_t room = std::max({first_room_bytes, bytes, 2 * memory_->room()});
  if (!memory_->resize(room)) return errno_error(fmt::format("take {} bytes of memory", room));
  return {};
}

Result<void> StorageWriter::move_to_disk() {
  file_ = open_nameless(folder_);
  if (file_ < 0) return failed("make");
  FL_CHECK(write({memory_->at(), static_cast<std::size_t>(bytes_)}));
  memory_ = std::make_unique<Mapping>();
  return {};
}

Result<void> StorageWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return failed("write");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

Result<void> StorageWriter::write_pending() {
  FL_CHECK(write(pending_));
  pending_.clear();
  return {};
}

Error StorageWriter::failed(std::string_view what) const {
  const Error error = errno_error(fmt::format(
      "{} a temporary file in {} for data beyond --data-memory", what, folder_.string()));
  return {error.code(),
          error.message() +
              "; set TMPDIR to a folder of a disk with room for the data, or raise --data-memory"};
}

Result<Storage> StorageWriter::finish() {
  auto mapping = std::make_shared<Mapping>();
  const std::uint64_t bytes = std::exchange(bytes_, 0);
  if (file_ >= 0) {
    FL_CHECK(write_pending());
    if (!mapping->map(file_, bytes)) return failed("map");
    ::close(std::exchange(file_, -1));
  } else if (bytes > 0) {
    if (!memory_->resize(bytes)) return errno_error(fmt::format("keep {} bytes of memory", bytes));
    mapping = std::shared_ptr<Mapping>(std::exchange(memory_, std::make_unique<Mapping>()));
  }
  const std::span<const std::byte> all{mapping->at(), static_cast<std::size_t>(bytes)};
  return Storage(std::move(mapping), all);
}

}  // namespace fl
