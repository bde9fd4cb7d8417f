// SPDX-License-Identifier: Apache-2.0
#include "examples/sim/scratch_files.hpp"

#include "kernels/generic/huge_pages.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

namespace fl::sim {

namespace {

/// The range [offset, offset + bytes) of `all`; empty if it is not completely inside.
Bytes part_of(Bytes all, std::uint64_t offset, std::uint64_t bytes) {
  if (offset > all.size() || bytes > all.size() - offset) return {};
  return all.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
}

/// A file on disk whose sync() does nothing.
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

/// A read-only file on disk that is mapped: a checkpoint, which many clients fetch.
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

/// The memory of the passing files. The memory of closed files is kept for the next ones, because
/// getting fresh memory costs more than writing the bytes. Any thread.
struct ScratchFiles::Buffers : std::enable_shared_from_this<Buffers> {
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  struct Memory {
    std::unique_ptr<std::byte[], Free> bytes;
    std::size_t capacity = 0;
  };

  std::shared_ptr<Memory> take(std::size_t bytes_min) {
    Memory memory;
    {
      const MutexLock lock(mutex);
      if (!free.empty()) {
        memory = std::move(free.back());
        free.pop_back();
      }
    }
    if (memory.capacity < bytes_min) {
      memory = fresh(std::bit_ceil(std::max<std::size_t>(bytes_min, 4096)));
    }
    const std::shared_ptr<Memory> taken(new Memory(std::move(memory)),
                                        [self = shared_from_this()](Memory* returned) {
                                          self->give_back(std::move(*returned));
                                          delete returned;
                                        });
    const MutexLock lock(mutex);
    in_use[taken->bytes.get()] = taken;
    return taken;
  }

  /// The memory that contains all of `bytes`, or null.
  std::shared_ptr<Memory> holding(Bytes bytes) {
    // Declared outside the lock: if this is the last reference, its deleter takes the lock.
    std::shared_ptr<Memory> memory;
    {
      const MutexLock lock(mutex);
      const auto after = in_use.upper_bound(bytes.data());
      if (after != in_use.begin()) memory = std::prev(after)->second.lock();
    }
    if (!memory) return nullptr;
    const auto before = static_cast<std::size_t>(bytes.data() - memory->bytes.get());
    return before + bytes.size() <= memory->capacity ? memory : nullptr;
  }

  Mutex mutex;
  std::vector<Memory> free FL_GUARDED_BY(mutex);
  /// By its first byte.
  std::map<const std::byte*, std::weak_ptr<Memory>, std::less<>> in_use FL_GUARDED_BY(mutex);

 private:
  /// Allocates memory, in huge pages if it is large enough.
  static Memory fresh(std::size_t capacity) {
    constexpr std::size_t huge_page = 2 << 20;
    const std::size_t alignment = std::min(capacity, huge_page);
    auto* const bytes = static_cast<std::byte*>(std::aligned_alloc(alignment, capacity));
    if (bytes == nullptr) throw std::bad_alloc();
    if (capacity >= huge_page) ::madvise(bytes, capacity, MADV_HUGEPAGE);
    return {std::unique_ptr<std::byte[], Free>(bytes), capacity};
  }
  void give_back(Memory memory) {
    const MutexLock lock(mutex);
    in_use.erase(memory.bytes.get());
    free.push_back(std::move(memory));
  }
};

/// The bytes of a passing file. The beginning may be borrowed from the memory of another file, of
/// which this one is a copy (an update on its way from client to server); the rest is its own.
/// Memory that another file has borrowed is never written to: its owner moves to other memory
/// first.
struct ScratchFiles::Contents {
  explicit Contents(std::shared_ptr<Buffers> from) : buffers(std::move(from)) {}

  /// The longest contiguous run of bytes that starts at `offset`, at most `bytes`.
  Bytes run_at(std::size_t offset, std::size_t bytes) const {
    if (offset < lent_bytes) return {lent + offset, std::min(bytes, lent_bytes - offset)};
    return {own->bytes.get() + offset, bytes};
  }

  /// Borrows `bytes` instead of copying them, if they are another file's and follow the bytes that
  /// are borrowed from it already. Returns whether it did.
  bool borrow(std::size_t offset, Bytes bytes) {
    if (offset != lent_bytes || bytes.size() < borrowed_bytes_min) return false;
    if (lent_bytes > 0 && lent + offset != bytes.data()) return false;
    auto memory = buffers->holding(bytes);
    if (!memory || memory == own || (lent_bytes > 0 && memory != lender)) return false;
    if (lent_bytes == 0) lent = bytes.data();
    lender = std::move(memory);
    lent_bytes += bytes.size();
    return true;
  }

  void write(std::size_t offset, Bytes bytes) {
    const std::size_t end = offset + bytes.size();
    if (!borrow(offset, bytes)) {
      make_own(end, offset < lent_bytes);
      copy_bytes(own->bytes.get() + offset, bytes.data(), bytes.size());
    }
    size = std::max(size, end);
  }

  void truncate(std::size_t bytes) {
    lent_bytes = std::min(lent_bytes, bytes);
    if (bytes > size) make_own(bytes, false);
    size = bytes;
  }

  std::size_t size = 0;

 private:
  static constexpr std::size_t borrowed_bytes_min = 4096;

  /// Makes `own` writable and large enough for this many bytes and for the file. If `also_lent`,
  /// copies the borrowed bytes to it.
  void make_own(std::size_t bytes, bool also_lent) {
    bytes = std::max(bytes, size);
    if (!own || own.use_count() > 1 || own->capacity < bytes) {
      const auto before = std::exchange(own, buffers->take(bytes));
      if (before)
        copy_bytes(own->bytes.get(), before->bytes.get(), std::min(size, before->capacity));
    }
    if (!also_lent) return;
    copy_bytes(own->bytes.get(), lent, lent_bytes);
    lent_bytes = 0;
    lender.reset();
  }

  std::shared_ptr<Buffers> buffers;
  std::shared_ptr<Buffers::Memory> own;
  std::shared_ptr<Buffers::Memory> lender;
  const std::byte* lent = nullptr;
  std::size_t lent_bytes = 0;
};

/// The uploads that were closed. The server may read them again until it removes them, to add up
/// the round's sums in a wider format. What does not fit into memory is written to the disk. Any
/// thread.
class ScratchFiles::Kept {
 public:
  /// A failure shows as a missing file when the upload is read again.
  void keep(const std::string& path, std::shared_ptr<Contents> contents) {
    const MutexLock lock(mutex_);
    drop_locked(path);
    if (bytes_ + contents->size > bytes_max) {
      if (auto file = posix_files().open(path, OpenMode::truncate)) {
        for (std::size_t at = 0; at < contents->size;) {
          const Bytes run = contents->run_at(at, contents->size - at);
          if (!(*file)->write_at(at, run)) return;
          at += run.size();
        }
        on_disk_.insert(path);
      }
      return;
    }
    bytes_ += contents->size;
    in_memory_[path] = std::move(contents);
  }
  void drop(const std::string& path) {
    const MutexLock lock(mutex_);
    drop_locked(path);
  }
  [[nodiscard]] bool is_on_disk(const std::string& path) {
    const MutexLock lock(mutex_);
    return on_disk_.contains(path);
  }

 private:
  static constexpr std::size_t bytes_max = 2 << 20;

  void drop_locked(const std::string& path) FL_REQUIRES(mutex_) {
    if (const auto node = in_memory_.extract(path)) bytes_ -= node.mapped()->size;
    if (on_disk_.erase(path) > 0) static_cast<void>(posix_files().remove(path));
  }

  Mutex mutex_;
  std::map<std::string, std::shared_ptr<Contents>> in_memory_ FL_GUARDED_BY(mutex_);
  std::set<std::string> on_disk_ FL_GUARDED_BY(mutex_);
  std::size_t bytes_ FL_GUARDED_BY(mutex_) = 0;
};

class ScratchFiles::Passing final : public File {
 public:
  /// `kept` keeps the contents under `path` when the file is closed; may be null.
  Passing(std::shared_ptr<Contents> contents, std::shared_ptr<Kept> kept, std::string path)
      : contents_(std::move(contents)), kept_(std::move(kept)), path_(std::move(path)) {}
  ~Passing() override {
    if (kept_) kept_->keep(path_, std::move(contents_));
  }

  Result<std::size_t> read_at(std::uint64_t offset, MutableBytes out) override {
    const std::uint64_t size = contents_->size;
    if (offset >= size) return std::size_t{0};
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), size - offset));
    for (std::size_t done = 0; done < bytes;) {
      const Bytes run = contents_->run_at(static_cast<std::size_t>(offset) + done, bytes - done);
      copy_bytes(out.data() + done, run.data(), run.size());
      done += run.size();
    }
    return bytes;
  }
  Result<void> write_at(std::uint64_t offset, Bytes bytes) override {
    if (!bytes.empty()) contents_->write(static_cast<std::size_t>(offset), bytes);
    return {};
  }
  Result<void> truncate(std::uint64_t bytes) override {
    contents_->truncate(static_cast<std::size_t>(bytes));
    return {};
  }
  Result<std::uint64_t> size() override { return std::uint64_t{contents_->size}; }
  Result<void> sync() override { return {}; }
  void start_writeback(std::uint64_t, std::uint64_t) override {}
  Bytes view(std::uint64_t offset, std::uint64_t bytes) override {
    const std::uint64_t size = contents_->size;
    if (bytes == 0 || offset > size || bytes > size - offset) return {};
    const Bytes run =
        contents_->run_at(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
    return run.size() == bytes ? run : Bytes{};
  }

 private:
  std::shared_ptr<Contents> contents_;
  std::shared_ptr<Kept> kept_;
  std::string path_;
};

ScratchFiles::ScratchFiles()
    : buffers_(std::make_shared<Buffers>()), kept_(std::make_shared<Kept>()) {}

bool ScratchFiles::is_passing(const std::filesystem::path& path) const {
  constexpr std::array<std::string_view, 5> prefixes = {"update-", "client.json", "download-",
                                                        "task-", "spare-"};
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
  const MutexLock lock(mutex_);
  Names& names = folders_[path.parent_path().string()];
  const std::string name = path.filename().string();
  const bool must_exist = mode == OpenMode::read || mode == OpenMode::update;
  if (must_exist && !names.contains(name)) return not_found(path);
  if (must_exist && kept_->is_on_disk(path.string())) {
    FL_TRY(auto file, disk_.open(path, mode));
    return std::unique_ptr<File>(std::make_unique<Unsynced>(std::move(file)));
  }
  auto& place = names[name];
  const bool is_new = mode == OpenMode::truncate || mode == OpenMode::fresh;
  auto contents = is_new ? nullptr : place.lock();
  if (!contents) contents = std::make_shared<Contents>(buffers_);
  place = contents;
  const bool is_upload = name.starts_with("task-");
  return std::unique_ptr<File>(
      std::make_unique<Passing>(std::move(contents), is_upload ? kept_ : nullptr, path.string()));
}

Result<void> ScratchFiles::rename(const std::filesystem::path& from,
                                  const std::filesystem::path& to) {
  if (!is_passing(from)) return disk_.rename(from, to);
  kept_->drop(from.string());
  const MutexLock lock(mutex_);
  const auto node = folders_[from.parent_path().string()].extract(from.filename().string());
  if (node.empty()) return not_found(from);
  folders_[to.parent_path().string()][to.filename().string()] = node.mapped();
  return {};
}

Result<void> ScratchFiles::remove(const std::filesystem::path& path) {
  if (!is_passing(path)) return disk_.remove(path);
  kept_->drop(path.string());
  const MutexLock lock(mutex_);
  folders_[path.parent_path().string()].erase(path.filename().string());
  return {};
}

bool ScratchFiles::exists(const std::filesystem::path& path) {
  if (!is_passing(path)) return disk_.exists(path);
  const MutexLock lock(mutex_);
  return folders_[path.parent_path().string()].contains(path.filename().string());
}

Result<std::vector<std::string>> ScratchFiles::list(const std::filesystem::path& folder) {
  FL_TRY(auto all, disk_.list(folder));
  const MutexLock lock(mutex_);
  for (const auto& [name, contents] : folders_[folder.string()]) all.push_back(name);
  std::ranges::sort(all);
  return all;
}

Result<void> ScratchFiles::make_folder(const std::filesystem::path& folder) {
  FL_CHECK(disk_.make_folder(folder.parent_path()));
  // Not Files::make_folder of the disk, because that syncs, for each of thousands of clients.
  if (::mkdir(folder.c_str(), 0700) < 0 && errno != EEXIST) return errno_error(folder.string());
  return {};
}

Result<void> ScratchFiles::sync_folder(const std::filesystem::path&) { return {}; }

}  // namespace fl::sim
