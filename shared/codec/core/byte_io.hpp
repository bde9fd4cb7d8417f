// Where payload bytes come from and go to: memory or a File, at any offset. The adapters keep a
// reference to what they adapt, which must outlive them.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/base/io/file.hpp"

#include <cstdint>
#include <vector>

namespace fl {

/// Several threads may read from one source at once.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills `out` with the bytes from `offset`; a source that ends before is `corrupt`.
  [[nodiscard]] virtual Result<void> read(std::uint64_t offset, MutableBytes out) = 0;
  /// The same `bytes` bytes where they lie, if they lie in memory, else in `scratch`.
  [[nodiscard]] virtual Result<Bytes> look(std::uint64_t offset, std::size_t bytes,
                                           std::vector<std::byte>& scratch);
};

class SpanSource final : public ByteSource {
 public:
  explicit SpanSource(Bytes bytes) : bytes_(bytes) {}
  [[nodiscard]] Result<void> read(std::uint64_t offset, MutableBytes out) override;

 private:
  Bytes bytes_;
};

/// The bytes of a file from `base` on.
class FileSource final : public ByteSource {
 public:
  explicit FileSource(File& file, std::uint64_t base = 0) : file_(file), base_(base) {}
  [[nodiscard]] Result<void> read(std::uint64_t offset, MutableBytes out) override;
  [[nodiscard]] Result<Bytes> look(std::uint64_t offset, std::size_t bytes,
                                   std::vector<std::byte>& scratch) override;

 private:
  File& file_;
  std::uint64_t base_;
};

/// One thread at a time.
class PayloadSink {
 public:
  virtual ~PayloadSink() = default;
  /// Writes all of `bytes` at `offset`, growing as needed.
  [[nodiscard]] virtual Result<void> write(std::uint64_t offset, Bytes bytes) = 0;
};

class VectorSink final : public PayloadSink {
 public:
  explicit VectorSink(std::vector<std::byte>& bytes) : bytes_(bytes) {}
  [[nodiscard]] Result<void> write(std::uint64_t offset, Bytes bytes) override;

 private:
  std::vector<std::byte>& bytes_;
};

class FileSink final : public PayloadSink {
 public:
  explicit FileSink(File& file, std::uint64_t base = 0) : file_(file), base_(base) {}
  [[nodiscard]] Result<void> write(std::uint64_t offset, Bytes bytes) override;

 private:
  File& file_;
  std::uint64_t base_;
};

}  // namespace fl
