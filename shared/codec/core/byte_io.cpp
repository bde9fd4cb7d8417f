// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/core/byte_io.hpp"

#include <fmt/format.h>

namespace fl::codec {

Result<Bytes> ByteSource::look(std::uint64_t offset, std::size_t bytes,
                               std::vector<std::byte>& scratch) {
  scratch.resize(bytes);
  FL_CHECK(read(offset, scratch));
  return Bytes(scratch);
}

Result<void> SpanSource::read(std::uint64_t offset, MutableBytes out) {
  if (offset > bytes_.size() || out.size() > bytes_.size() - offset) {
    return Error(Errc::corrupt, fmt::format("cannot read {} bytes at offset {}: there are only {}",
                                            out.size(), offset, bytes_.size()));
  }
  copy_bytes(out.data(), bytes_.data() + offset, out.size());
  return {};
}

Result<void> FileSource::read(std::uint64_t offset, MutableBytes out) {
  return file_.read_exactly(base_ + offset, out);
}

Result<Bytes> FileSource::look(std::uint64_t offset, std::size_t bytes,
                               std::vector<std::byte>& scratch) {
  const Bytes there = file_.view(base_ + offset, bytes);
  return there.empty() ? ByteSource::look(offset, bytes, scratch) : Result<Bytes>(there);
}

Result<void> VectorSink::write(std::uint64_t offset, Bytes bytes) {
  if (bytes_.size() < offset + bytes.size()) bytes_.resize(offset + bytes.size());
  copy_bytes(bytes_.data() + offset, bytes.data(), bytes.size());
  return {};
}

Result<void> PayloadSink::write_parts(std::uint64_t offset, std::span<const Bytes> parts) {
  for (const Bytes part : parts) {
    FL_CHECK(write(offset, part));
    offset += part.size();
  }
  return {};
}

Result<void> FileSink::write(std::uint64_t offset, Bytes bytes) {
  return file_.write_at(base_ + offset, bytes);
}

Result<void> FileSink::write_parts(std::uint64_t offset, std::span<const Bytes> parts) {
  return file_.write_parts_at(base_ + offset, parts);
}

}  // namespace fl::codec
