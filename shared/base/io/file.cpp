// SPDX-License-Identifier: Apache-2.0
#include "shared/base/io/file.hpp"

#include "shared/base/failpoint.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <cerrno>
#include <climits>

#include <algorithm>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

namespace fl {

namespace fs = std::filesystem;

namespace {

/// An error "VERB PATH: reason" from errno. Saves errno first, as building the text may change it.
Error failed(std::string_view verb, const fs::path& path) {
  const int number = errno;
  const std::string what = std::string(verb) + " " + path.string();
  errno = number;
  return errno_error(what);
}

Error failed(std::string_view verb, const fs::path& path, const std::error_code& reason) {
  errno = reason.value();
  return failed(verb, path);
}

/// The folder that `path` is in.
fs::path folder_of(const fs::path& path) {
  const fs::path parent = path.parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

/// Repeats a system call while a signal interrupts it (EINTR).
template <class Call>
auto uninterrupted(Call call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

/// A system call that changes the disk. The failpoints let tests kill the process before and after
/// each of them.
template <class Call>
auto durable_step(Call call) {
  failpoint("disk.step");
  const auto result = call();
  failpoint("disk.step");
  return result;
}

class PosixFile final : public File {
 public:
  PosixFile(int descriptor, fs::path path) : descriptor_(descriptor), path_(std::move(path)) {}
  ~PosixFile() override { ::close(descriptor_); }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  Result<std::size_t> read_at(std::uint64_t offset, MutableBytes out) override {
    std::size_t done = 0;
    while (done < out.size()) {
      const ssize_t got = uninterrupted([&] {
        return ::pread(descriptor_, out.data() + done, out.size() - done,
                       static_cast<off_t>(offset + done));
      });
      if (got < 0) return failed("read", path_);
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

  Result<void> write_at(std::uint64_t offset, Bytes bytes) override {
    return write_parts_at(offset, {&bytes, 1});
  }

  Result<void> write_parts_at(std::uint64_t offset, std::span<const Bytes> parts) override {
    std::vector<iovec> left;
    for (const Bytes part : parts)
      if (!part.empty()) left.push_back({const_cast<std::byte*>(part.data()), part.size()});
    for (std::size_t first = 0; first < left.size();) {
      const auto count = static_cast<int>(std::min<std::size_t>(left.size() - first, IOV_MAX));
      const ssize_t put = uninterrupted(
          [&] { return ::pwritev(descriptor_, &left[first], count, static_cast<off_t>(offset)); });
      if (put < 0) return failed("write", path_);
      if (put == 0) return Error(Errc::io, "write " + path_.string() + ": no byte was written");
      offset += static_cast<std::uint64_t>(put);
      // A disk that is almost full may take the beginning of a part only.
      for (auto taken = static_cast<std::size_t>(put); taken > 0;) {
        iovec& part = left[first];
        const std::size_t here = std::min(taken, part.iov_len);
        part = {static_cast<std::byte*>(part.iov_base) + here, part.iov_len - here};
        taken -= here;
        if (part.iov_len == 0) ++first;
      }
    }
    return {};
  }

  Result<void> truncate(std::uint64_t bytes) override {
    const auto length = static_cast<off_t>(bytes);
    const auto cut = [&] { return ::ftruncate(descriptor_, length); };
    if (durable_step([&] { return uninterrupted(cut); }) < 0) {
      return failed("truncate", path_);
    }
    return {};
  }

  Result<void> reserve(std::uint64_t bytes) override {
    const auto length = static_cast<off_t>(bytes);
    if (length == 0 || uninterrupted([&] { return ::fallocate(descriptor_, 0, 0, length); }) == 0)
      return {};
    if (errno != EOPNOTSUPP && errno != ENOSYS) return failed("take room for", path_);
    return File::reserve(bytes);
  }

  Result<std::uint64_t> size() override {
    struct stat status {};
    if (::fstat(descriptor_, &status) < 0) return failed("stat", path_);
    return static_cast<std::uint64_t>(status.st_size);
  }

  Result<void> sync() override {
    // Don't retry, not even after EINTR: the kernel may have dropped the dirty pages, and a second
    // call would report success.
    if (durable_step([&] { return ::fdatasync(descriptor_); }) < 0) return failed("sync", path_);
    return {};
  }

  Result<std::unique_ptr<FileMapping>> map(std::uint64_t bytes) override {
    return FileMapping::make(descriptor_, bytes, path_);
  }

  void start_writeback(std::uint64_t offset, std::uint64_t bytes) override {
    // For sync_file_range 0 bytes means "up to the end of the file".
    if (bytes == 0) return;
    ::sync_file_range(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                      SYNC_FILE_RANGE_WRITE);
  }

 private:
  int descriptor_;
  fs::path path_;
};

int open_flags(OpenMode mode) {
  switch (mode) {
    case OpenMode::read: return O_RDONLY;
    case OpenMode::update: return O_RDWR;
    case OpenMode::create: return O_RDWR | O_CREAT;
    case OpenMode::truncate: return O_RDWR | O_CREAT | O_TRUNC;
    case OpenMode::fresh: break;
  }
  return O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW;
}

class PosixFiles final : public Files {
 public:
  Result<std::unique_ptr<File>> open(const fs::path& path, OpenMode mode) override {
    // O_NONBLOCK does nothing to a file; a FIFO in its place, or a device, must not be waited for.
    const int flags = open_flags(mode) | O_CLOEXEC | O_NONBLOCK;
    const auto open = [&] { return ::open(path.c_str(), flags, 0600); };
    int descriptor = uninterrupted(open);
    if (descriptor < 0 && errno == EEXIST && mode == OpenMode::fresh) {
      // A crash has left the file, or another user has put it there: for example a link to one of
      // our files.
      FL_CHECK(remove(path));
      descriptor = uninterrupted(open);
    }
    if (descriptor < 0) return failed("open", path);
    auto file = std::make_unique<PosixFile>(descriptor, path);
    FL_CHECK(expect_regular(descriptor, path));
    return std::unique_ptr<File>(std::move(file));
  }

  Result<void> rename(const fs::path& from, const fs::path& to) override {
    if (durable_step([&] { return ::rename(from.c_str(), to.c_str()); }) < 0)
      return failed("rename " + from.string() + " to", to);
    return {};
  }

  Result<void> remove(const fs::path& path) override {
    if (durable_step([&] { return ::unlink(path.c_str()); }) < 0 && errno != ENOENT)
      return failed("remove", path);
    return {};
  }

  bool can_map() const override { return true; }

  bool exists(const fs::path& path) override {
    std::error_code ignored;
    return fs::exists(path, ignored);
  }

  Result<std::vector<std::string>> list(const fs::path& folder) override {
    std::vector<std::string> names;
    std::error_code failure;
    for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
         entry.increment(failure)) {
      std::error_code gone;  // Another process may have removed the file; that is no error.
      if (entry->is_regular_file(gone)) names.push_back(entry->path().filename().string());
    }
    if (failure) return failed("list", folder, failure);
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<void> make_folder(const fs::path& folder) override {
    std::error_code ignored;
    if (folder.empty() || fs::is_directory(folder, ignored)) return {};
    const fs::path parent = folder_of(folder);
    FL_CHECK(make_folder(parent));
    if (::mkdir(folder.c_str(), 0700) < 0) {
      // Another process may have made the folder meanwhile.
      if (errno == EEXIST && fs::is_directory(folder, ignored)) return {};
      return failed("make folder", folder);
    }
    return sync_folder(parent);
  }

  Result<void> sync_folder(const fs::path& folder) override {
    const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
    const int descriptor = uninterrupted([&] { return ::open(folder.c_str(), flags); });
    if (descriptor < 0) return failed("open folder", folder);
    Result<void> result;
    if (durable_step([&] { return ::fsync(descriptor); }) < 0)
      result = failed("sync folder", folder);
    ::close(descriptor);
    return result;
  }
};

}  // namespace

Result<void> expect_regular(int descriptor, const fs::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) < 0) return failed("stat", path);
  if (S_ISREG(status.st_mode)) return {};
  return Error(Errc::io, path.string() + (S_ISDIR(status.st_mode) ? " is a folder, not a file"
                                          : S_ISFIFO(status.st_mode)
                                              ? " is a pipe (FIFO), not a file: give a file"
                                              : " is a device, not a file: give a file"));
}

Result<void> File::reserve(std::uint64_t bytes) {
  FL_TRY(const std::uint64_t there, size());
  return there < bytes ? truncate(bytes) : success();
}

Result<void> File::read_exactly(std::uint64_t offset, MutableBytes out) {
  FL_TRY(const std::size_t got, read_at(offset, out));
  if (got == out.size()) return {};
  return Error(Errc::corrupt, "the file is too short: it ends at byte " +
                                  std::to_string(offset + got) + ", expected " +
                                  std::to_string(out.size()) + " bytes from byte " +
                                  std::to_string(offset));
}

Result<std::string> Files::read_all(const fs::path& path, std::uint64_t bytes_max) {
  FL_TRY(const auto file, open(path, OpenMode::read));
  FL_TRY(const std::uint64_t bytes, file->size());
  if (bytes > bytes_max) {
    return Error(Errc::too_large, path.string() + " has " + std::to_string(bytes) +
                                      " bytes; the limit is " + std::to_string(bytes_max));
  }
  std::string text(static_cast<std::size_t>(bytes), '\0');
  FL_TRY(const std::size_t got, file->read_at(0, std::as_writable_bytes(std::span(text))));
  text.resize(got);
  return text;
}

Result<void> Files::replace(const fs::path& path, const Write& write) {
  fs::path fresh = path;
  fresh += ".tmp";
  const auto write_fresh = [&]() -> Result<void> {
    FL_TRY(const auto file, open(fresh, OpenMode::fresh));
    FL_CHECK(write(*file));
    return file->sync();
  };
  Result<void> written = write_fresh();
  if (written) written = rename(fresh, path);
  if (!written) {
    // Best effort: the next write replaces a file that is left behind. Report the first error.
    (void)remove(fresh);
    return written;
  }
  return sync_folder(folder_of(path));
}

Result<void> File::write_parts_at(std::uint64_t offset, std::span<const Bytes> parts) {
  for (const Bytes part : parts) {
    FL_CHECK(write_at(offset, part));
    offset += part.size();
  }
  return {};
}

Result<void> Files::write_atomically(const fs::path& path, Bytes bytes) {
  return replace(path, [bytes](File& fresh) { return fresh.write_at(0, bytes); });
}

Files& posix_files() {
  static PosixFiles files;
  return files;
}

}  // namespace fl
