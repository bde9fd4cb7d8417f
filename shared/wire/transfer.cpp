// SPDX-License-Identifier: Apache-2.0
#include "shared/wire/transfer.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl {

namespace {

/// Reads a byte of each page, so that those which can't be read show before they are sent.
void load_pages(Bytes bytes) {
  constexpr std::size_t page = 4096;
  for (std::size_t at = 0; at < bytes.size(); at += page)
    static_cast<void>(*static_cast<const volatile std::byte*>(&bytes[at]));
  if (!bytes.empty()) static_cast<void>(*static_cast<const volatile std::byte*>(&bytes.back()));
}

/// The bytes of a mapped file; none if they are to be read: then reading tells what is wrong.
Bytes mapped(const Segment& segment, std::uint64_t offset, std::size_t bytes) {
  if (!segment.mapping || !segment.mapping->check()) return {};
  const Bytes there =
      segment.mapping->bytes().subspan(static_cast<std::size_t>(segment.offset + offset), bytes);
  load_pages(there);
  return segment.mapping->check() ? there : Bytes();
}

}  // namespace

SegmentSource::SegmentSource(std::vector<Segment> segments) : segments_(std::move(segments)) {
  for (const auto& segment : segments_) bytes_ += segment.bytes;
}

Result<Payload> SegmentSource::read(std::uint64_t offset, std::size_t bytes_max) const {
  FL_ASSERT(offset < bytes_);
  const auto* segment = segments_.data();
  while (offset >= segment->bytes) {
    offset -= segment->bytes;
    ++segment;
  }
  const auto bytes =
      static_cast<std::size_t>(std::min<std::uint64_t>(bytes_max, segment->bytes - offset));
  if (const Bytes there = mapped(*segment, offset, bytes); !there.empty())
    return Payload(segment->mapping, there);
  if (const Bytes there = segment->file->view(segment->offset + offset, bytes); !there.empty())
    return Payload(segment->file, there);
  const std::shared_ptr<std::byte[]> block(new std::byte[bytes]);
  FL_CHECK(segment->file->read_exactly(segment->offset + offset, MutableBytes(block.get(), bytes)));
  return Payload(block, Bytes(block.get(), bytes));
}

ChunkSize::ChunkSize(std::size_t bytes_max)
    : bytes_max_(std::clamp(bytes_max, limits::chunk_bytes_min, limits::chunk_bytes_max)),
      bytes_(limits::chunk_bytes_min) {}

void ChunkSize::sent(std::size_t bytes, Duration took) {
  if (took > limits::chunk_time_goal) {
    bytes_ = std::max(limits::chunk_bytes_min, bytes_ / 2);
  } else if (bytes == bytes_ && took < limits::chunk_time_goal / 4) {
    bytes_ = std::min(bytes_max_, bytes_ * 2);
  }
}

Awaitable<Result<std::size_t>> send_chunk(Link& link, std::uint64_t id, const SegmentSource& source,
                                          std::uint64_t offset, ChunkSize& size) {
  FL_CO_TRY(Payload block, source.read(offset, std::min(size.bytes(), link.payload_room())));
  const std::size_t bytes = block.bytes().size();
  wire::Header header;
  header.mutable_chunk()->set_transfer(id);
  header.mutable_chunk()->set_offset(offset);
  const TimePoint start = Clock::now();
  Message message(std::move(header), std::move(block));
  FL_CO_CHECK(co_await link.send(std::move(message)));
  size.sent(bytes, Clock::now() - start);
  co_return bytes;
}

Awaitable<Result<void>> send_chunks(Link& link, std::uint64_t id, const SegmentSource& source,
                                    std::uint64_t offset, std::size_t chunk_bytes_max) {
  ChunkSize size(chunk_bytes_max);
  while (offset < source.bytes()) {
    FL_CO_TRY(const std::size_t sent, co_await send_chunk(link, id, source, offset, size));
    offset += sent;
  }
  co_return success();
}

Result<void> check_chunk(const Message& message, std::uint64_t id, std::uint64_t next_offset,
                         std::uint64_t total) {
  const auto& chunk = message.header.chunk();
  const std::size_t bytes = message.payload.bytes().size();
  if (chunk.transfer() != id) {
    return Error(Errc::protocol,
                 fmt::format("a chunk of transfer {}, expected transfer {}", chunk.transfer(), id));
  }
  if (bytes == 0)
    return Error(Errc::protocol, fmt::format("an empty chunk at byte {}", chunk.offset()));
  if (chunk.offset() != next_offset) {
    const char* what = chunk.offset() < next_offset ? "duplicated" : "reordered or missing";
    return Error(Errc::protocol, fmt::format("a {} chunk: it begins at byte {}, expected byte {}",
                                             what, chunk.offset(), next_offset));
  }
  if (bytes > total - next_offset) {
    return Error(Errc::too_large,
                 fmt::format("a chunk of {} bytes at byte {} exceeds the announced {} bytes", bytes,
                             next_offset, total));
  }
  return {};
}

}  // namespace fl
