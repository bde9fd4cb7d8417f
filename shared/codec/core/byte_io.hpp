// SPDX-License-Identifier: Apache-2.0
// Sources and sinks of payload bytes: memory or a File, at any offset. Each class keeps a reference
// to the memory or the File, which must outlive it.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/base/io/file.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace fl::codec {

/// Any thread; several threads may read at the same time.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Fills `out` with the bytes from `offset` on. Errors: corrupt if the source ends too early; a
  /// file's error.
  [[nodiscard]] virtual Result<void> read(std::uint64_t offset, MutableBytes out) = 0;
  /// The `bytes` bytes from `offset` on, without a copy if the source can show them in memory; else
  /// they are read into `scratch`. Errors as read().
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

/// The bytes of a file from `base` on; offset 0 is `base`.
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
  /// Writes all of `bytes` at `offset`. The sink grows as needed. Errors are the file's.
  [[nodiscard]] virtual Result<void> write(std::uint64_t offset, Bytes bytes) = 0;
  /// Writes all parts, one behind the other.
  [[nodiscard]] virtual Result<void> write_parts(std::uint64_t offset,
                                                 std::span<const Bytes> parts);
};

class VectorSink final : public PayloadSink {
 public:
  explicit VectorSink(std::vector<std::byte>& bytes) : bytes_(bytes) {}
  [[nodiscard]] Result<void> write(std::uint64_t offset, Bytes bytes) override;

 private:
  std::vector<std::byte>& bytes_;
};

/// Writes to a file; offset 0 is `base`.
class FileSink final : public PayloadSink {
 public:
  explicit FileSink(File& file, std::uint64_t base = 0) : file_(file), base_(base) {}
  [[nodiscard]] Result<void> write(std::uint64_t offset, Bytes bytes) override;
  [[nodiscard]] Result<void> write_parts(std::uint64_t offset,
                                         std::span<const Bytes> parts) override;

 private:
  File& file_;
  std::uint64_t base_;
};

}  // namespace fl::codec
