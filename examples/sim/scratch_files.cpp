#include "examples/sim/scratch_files.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace fl {

namespace {

/// Empty when they are not all there.
Bytes part_of(Bytes all, std::uint64_t offset, std::uint64_t bytes) {
  if (offset > all.size() || bytes > all.size() - offset) return {};
  return all.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
}

/// A file of the disk whose sync does nothing.
class Unsynced : public File {
 public:
  explicit Unsynced(std::unique_ptr<File> file) : file_(std::move(file)) {}
  Result<std::size_t> read_at(std::uint64_t offset, MutableBytes out) override {
    return file_->read_at(offset, out);
  }
  Result<void> write_at(std::uint64_t offset, Bytes bytes) override {
    return file_->write_at(offset, bytes);
  }
  Result<void> truncate(std::uint64_t bytes) override { return file_->truncate(bytes); }
  Result<std::uint64_t> size() override { return file_->size(); }
  Result<void> sync() override { return {}; }
  void start_writeback(std::uint64_t, std::uint64_t) override {}

 private:
  std::unique_ptr<File> file_;
};

/// One that is only read: a checkpoint, which a hundred clients fetch.
class Mapped final : public Unsynced {
 public:
  static Result<std::unique_ptr<File>> open(const std::filesystem::path& path) {
    FL_TRY(auto file, posix_files().open(path, OpenMode::read));
    FL_TRY(const std::uint64_t size, file->size());
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return errno_error(path.string());
    void* const start = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
    ::close(descriptor);
    if (start == MAP_FAILED) return errno_error("map " + path.string());
    const Bytes all(static_cast<const std::byte*>(start), static_cast<std::size_t>(size));
    return std::unique_ptr<File>(new Mapped(std::move(file), all));
  }
  ~Mapped() override { ::munmap(const_cast<std::byte*>(all_.data()), all_.size()); }
  Bytes view(std::uint64_t offset, std::uint64_t bytes) override {
    return part_of(all_, offset, bytes);
  }

 private:
  Mapped(std::unique_ptr<File> file, Bytes all) : Unsynced(std::move(file)), all_(all) {}
  Bytes all_;
};

Error not_found(const std::filesystem::path& path) {
  return {Errc::not_found, "there is no " + path.string()};
}

}  // namespace

/// Memory of closed files, for the next ones: fresh memory costs more than the bytes in it.
struct ScratchFiles::Buffers {
  struct Buffer {
    std::unique_ptr<std::byte[]> bytes;
    std::size_t capacity = 0;
  };

  Buffer take() {
    const std::lock_guard lock(mutex);
    if (free.empty()) return {};
    Buffer buffer = std::move(free.back());
    free.pop_back();
    return buffer;
  }
  void give_back(Buffer buffer) {
    if (buffer.capacity == 0) return;
    const std::lock_guard lock(mutex);
    free.push_back(std::move(buffer));
  }

  std::mutex mutex;
  std::vector<Buffer> free;
};

struct ScratchFiles::Contents {
  explicit Contents(std::shared_ptr<Buffers> from) : buffers(std::move(from)) {}
  ~Contents() { buffers->give_back(std::move(buffer)); }
  Contents(const Contents&) = delete;
  Contents& operator=(const Contents&) = delete;

  void reserve(std::size_t bytes) {
    if (buffer.capacity == 0) buffer = buffers->take();
    if (bytes <= buffer.capacity) return;
    const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(bytes, 4096));
    Buffers::Buffer grown{std::make_unique_for_overwrite<std::byte[]>(capacity), capacity};
    if (size > 0) std::memcpy(grown.bytes.get(), buffer.bytes.get(), size);
    buffer = std::move(grown);
  }

  std::shared_ptr<Buffers> buffers;
  Buffers::Buffer buffer;
  std::size_t size = 0;
};

class ScratchFiles::Passing final : public File {
 public:
  explicit Passing(std::shared_ptr<Contents> contents) : contents_(std::move(contents)) {}

  Result<std::size_t> read_at(std::uint64_t offset, MutableBytes out) override {
    const std::uint64_t size = contents_->size;
    if (offset >= size) return std::size_t{0};
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), size - offset));
    copy_bytes(out.data(), contents_->buffer.bytes.get() + offset, bytes);
    return bytes;
  }
  Result<void> write_at(std::uint64_t offset, Bytes bytes) override {
    if (bytes.empty()) return {};
    const auto end = static_cast<std::size_t>(offset + bytes.size());
    contents_->reserve(end);
    copy_bytes(contents_->buffer.bytes.get() + offset, bytes.data(), bytes.size());
    contents_->size = std::max(contents_->size, end);
    return {};
  }
  Result<void> truncate(std::uint64_t bytes) override {
    contents_->reserve(static_cast<std::size_t>(bytes));
    contents_->size = static_cast<std::size_t>(bytes);
    return {};
  }
  Result<std::uint64_t> size() override { return std::uint64_t{contents_->size}; }
  Result<void> sync() override { return {}; }
  void start_writeback(std::uint64_t, std::uint64_t) override {}
  Bytes view(std::uint64_t offset, std::uint64_t bytes) override {
    return part_of(Bytes(contents_->buffer.bytes.get(), contents_->size), offset, bytes);
  }

 private:
  std::shared_ptr<Contents> contents_;
};

ScratchFiles::ScratchFiles() : buffers_(std::make_shared<Buffers>()) {}

bool ScratchFiles::is_passing(const std::filesystem::path& path) {
  // Of the server's spool; of the client's state and its partial downloads.
  constexpr std::array<std::string_view, 5> prefixes = {"task-", "spare-", "update-", "client.json",
                                                        "download-"};
  const std::string name = path.filename().string();
  return std::ranges::any_of(prefixes,
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

Result<std::unique_ptr<File>> ScratchFiles::open(const std::filesystem::path& path, OpenMode mode) {
  if (!is_passing(path)) {
    if (mode == OpenMode::read && path.extension() == ".safetensors") return Mapped::open(path);
    FL_TRY(auto file, disk_.open(path, mode));
    return std::unique_ptr<File>(std::make_unique<Unsynced>(std::move(file)));
  }
  const std::lock_guard lock(mutex_);
  Names& names = folders_[path.parent_path().string()];
  const std::string name = path.filename().string();
  const bool must_exist = mode == OpenMode::read || mode == OpenMode::update;
  if (must_exist && !names.contains(name)) return not_found(path);
  auto& place = names[name];
  auto contents = mode == OpenMode::truncate ? nullptr : place.lock();
  if (!contents) contents = std::make_shared<Contents>(buffers_);
  place = contents;
  return std::unique_ptr<File>(std::make_unique<Passing>(std::move(contents)));
}

Result<void> ScratchFiles::rename(const std::filesystem::path& from,
                                  const std::filesystem::path& to) {
  if (!is_passing(from)) return disk_.rename(from, to);
  const std::lock_guard lock(mutex_);
  const auto node = folders_[from.parent_path().string()].extract(from.filename().string());
  if (node.empty()) return not_found(from);
  folders_[to.parent_path().string()][to.filename().string()] = node.mapped();
  return {};
}

Result<void> ScratchFiles::remove(const std::filesystem::path& path) {
  if (!is_passing(path)) return disk_.remove(path);
  const std::lock_guard lock(mutex_);
  folders_[path.parent_path().string()].erase(path.filename().string());
  return {};
}

bool ScratchFiles::exists(const std::filesystem::path& path) {
  if (!is_passing(path)) return disk_.exists(path);
  const std::lock_guard lock(mutex_);
  return folders_[path.parent_path().string()].contains(path.filename().string());
}

Result<std::vector<std::string>> ScratchFiles::list(const std::filesystem::path& folder) {
  FL_TRY(auto all, disk_.list(folder));
  const std::lock_guard lock(mutex_);
  for (const auto& [name, contents] : folders_[folder.string()]) all.push_back(name);
  std::ranges::sort(all);
  return all;
}

Result<void> ScratchFiles::make_folder(const std::filesystem::path& folder) {
  FL_CHECK(disk_.make_folder(folder.parent_path()));
  // Without the sync that the disk's own would add, for each of a thousand clients.
  if (::mkdir(folder.c_str(), 0700) < 0 && errno != EEXIST) return errno_error(folder.string());
  return {};
}

Result<void> ScratchFiles::sync_folder(const std::filesystem::path&) { return {}; }

}  // namespace fl
