// SPDX-License-Identifier: Apache-2.0
// Transfers of bulk data over a Link. The sender cuts the data into chunks whose size adapts to the
// speed of the connection; the receiver checks every offset. Both ends send and receive. Call
// everything on the link's strand.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/io/file_mapping.hpp"
#include "shared/base/limits.hpp"
#include "shared/wire/link.hpp"

#include <cstdint>
#include <memory>
#include <vector>

namespace fl {

/// A range of a file that is part of a transfer.
struct Segment {
  std::shared_ptr<File> file;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  /// The file, mapped up to the segment's end at least. Its bytes are then sent from the page cache
  /// without a copy, and nobody may write to it before the receiver has them all. Null: it is
  /// read.
  std::shared_ptr<FileMapping> mapping = {};
};

/// The bytes to send: segments of files, one after the other.
class SegmentSource {
 public:
  SegmentSource() = default;
  explicit SegmentSource(std::vector<Segment> segments);
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// Reads up to `bytes_max` bytes from `offset` (< bytes()), at most to the end of the segment.
  [[nodiscard]] Result<Payload> read(std::uint64_t offset, std::size_t bytes_max) const;

 private:
  std::vector<Segment> segments_;
  std::uint64_t bytes_ = 0;
};

/// Chooses the size of the next chunk in bytes. It starts small, so that a control message never
/// waits long on a slow connection. It doubles while a chunk takes less than a quarter of
/// limits::chunk_time_goal, and halves when a chunk takes longer than the goal.
class ChunkSize {
 public:
  explicit ChunkSize(std::size_t bytes_max);
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// Call after each chunk: its size, and how long sending it took.
  void sent(std::size_t bytes, Duration took);

 private:
  std::size_t bytes_max_;
  std::size_t bytes_;
};

/// Sends the bytes of `source` from `offset` to the end as chunks of transfer `id`. Returns when
/// the operating system has taken the last one.
Awaitable<Result<void>> send_chunks(Link& link, std::uint64_t id, const SegmentSource& source,
                                    std::uint64_t offset, std::size_t chunk_bytes_max);

/// Sends one chunk, of at most size.bytes() and link.payload_room(), and returns its size.
Awaitable<Result<std::size_t>> send_chunk(Link& link, std::uint64_t id, const SegmentSource& source,
                                          std::uint64_t offset, ChunkSize& size);

/// Checks that a chunk is the next one of its transfer. Errors say what is wrong: `protocol` for
/// another transfer, a duplicated, reordered or empty chunk, `too_large` for one past the end.
[[nodiscard]] Result<void> check_chunk(const Message& message, std::uint64_t id,
                                       std::uint64_t next_offset, std::uint64_t total);

}  // namespace fl
