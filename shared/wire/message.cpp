// SPDX-License-Identifier: Apache-2.0
#include "shared/wire/message.hpp"

#include "shared/base/limits.hpp"

#include <fmt/format.h>

namespace fl {

Result<void> check_header_size(const wire::Header& header) {
  const std::size_t bytes = header.ByteSizeLong();
  if (bytes <= limits::header_bytes_max) return {};
  return Error(Errc::too_large, fmt::format("{} to send has a header of {} bytes; the limit is {}",
                                            kind_name(header), bytes, limits::header_bytes_max));
}

std::string frame_header(const wire::Header& header) {
  const std::size_t bytes = header.ByteSizeLong();
  FL_ASSERT(bytes <= limits::header_bytes_max);
  std::string out(4 + bytes, '\0');
  store(std::as_writable_bytes(std::span(out)), 0, static_cast<std::uint32_t>(bytes));
  header.SerializeWithCachedSizesToArray(reinterpret_cast<std::uint8_t*>(out.data() + 4));
  return out;
}

Result<Message> parse_frame(std::shared_ptr<const void> owner, Bytes bytes) {
  if (bytes.size() < 4) {
    return Error(
        Errc::protocol,
        fmt::format("a message of {} bytes is too short for a header length", bytes.size()));
  }
  const std::size_t header_bytes = load<std::uint32_t>(bytes);
  if (header_bytes > limits::header_bytes_max) {
    return Error(Errc::too_large, fmt::format("a message header of {} bytes; the limit is {}",
                                              header_bytes, limits::header_bytes_max));
  }
  if (header_bytes > bytes.size() - 4) {
    return Error(Errc::protocol, fmt::format("a message ends within its header: {} of {} bytes",
                                             bytes.size() - 4, header_bytes));
  }
  wire::Header header;
  if (!header.ParseFromArray(bytes.data() + 4, static_cast<int>(header_bytes))) {
    return Error(Errc::protocol,
                 fmt::format("a message header of {} bytes is not valid protobuf", header_bytes));
  }
  if (header.kind_case() == wire::Header::KIND_NOT_SET) {
    return Error(Errc::protocol, "a message of an unknown kind");
  }
  const Bytes payload = bytes.subspan(4 + header_bytes);
  if (!payload.empty() && !header.has_chunk()) {
    return Error(Errc::protocol, fmt::format("{} payload bytes after {}, which has no payload",
                                             payload.size(), kind_name(header)));
  }
  if (payload.size() > limits::chunk_bytes_max) {
    return Error(Errc::too_large, fmt::format("a chunk of {} bytes; the limit is {}",
                                              payload.size(), limits::chunk_bytes_max));
  }
  return Message(std::move(header), Payload(std::move(owner), payload));
}

std::string kind_name(const wire::Header& header) {
  const auto* field = wire::Header::descriptor()->FindFieldByNumber(header.kind_case());
  return field == nullptr ? "nothing" : field->message_type()->name();
}

}  // namespace fl
