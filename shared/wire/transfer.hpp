// Bulk bytes over a Link: cutting them into chunks whose size follows the line's speed, and putting
// them together again with every offset checked. Used in both directions by both ends; on the
// link's strand.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/io/file.hpp"
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
};

/// What is sent: segments, one after the other, as one run of bytes.
class SegmentSource {
 public:
  SegmentSource() = default;
  explicit SegmentSource(std::vector<Segment> segments);
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// Up to `bytes_max` bytes from `offset` (< bytes()), never across a segment's end.
  [[nodiscard]] Result<Payload> read(std::uint64_t offset, std::size_t bytes_max) const;

 private:
  std::vector<Segment> segments_;
  std::uint64_t bytes_ = 0;
};

/// The size of the next chunk: doubles while chunks go out faster than limits::chunk_time_goal,
/// halves when they take longer. Starts small, so that a slow line never holds a control message
/// for long.
class ChunkSize {
 public:
  explicit ChunkSize(std::size_t bytes_max);
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  void sent(std::size_t bytes, Duration took);

 private:
  std::size_t bytes_max_;
  std::size_t bytes_;
};

/// Sends source[offset, end) in chunks of transfer `id`. Returns after the last is handed over.
Awaitable<Result<void>> send_chunks(Link& link, std::uint64_t id, const SegmentSource& source,
                                    std::uint64_t offset, std::size_t chunk_bytes_max);

/// One chunk of it, of `size.bytes()`; returns how many bytes went out.
Awaitable<Result<std::size_t>> send_chunk(Link& link, std::uint64_t id, const SegmentSource& source,
                                          std::uint64_t offset, ChunkSize& size);

/// What a chunk must satisfy to be the next of its transfer: names what is wrong otherwise
/// (another transfer, duplicated, out of order, empty, past the end).
[[nodiscard]] Result<void> check_chunk(const Message& message, std::uint64_t id,
                                       std::uint64_t next_offset, std::uint64_t total);

}  // namespace fl
