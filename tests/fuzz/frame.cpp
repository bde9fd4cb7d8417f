// SPDX-License-Identifier: Apache-2.0
// Fuzzes one WebSocket message: header length, protobuf header, payload.
#include "shared/base/limits.hpp"
#include "shared/wire/message.hpp"

using namespace fl;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // Otherwise protobuf writes to stderr about every text that is not UTF-8.
  static const auto log_handler = google::protobuf::SetLogHandler(nullptr);
  static_cast<void>(log_handler);

  const Bytes frame = std::as_bytes(std::span(data, size));
  const auto message = parse_frame(nullptr, frame);
  if (!message) {
    FL_ASSERT(message.error().code() == Errc::protocol ||
              message.error().code() == Errc::too_large);
    return 0;
  }
  FL_ASSERT(message->header.kind_case() != wire::Header::KIND_NOT_SET);
  FL_ASSERT(kind_name(message->header) != "nothing");
  const Bytes payload = message->payload.bytes();
  FL_ASSERT(payload.size() <= limits::chunk_bytes_max);
  FL_ASSERT(payload.empty() || message->header.has_chunk());
  FL_ASSERT(payload.size() + 4 + load<std::uint32_t>(frame) == size);
  FL_ASSERT(payload.empty() || &payload.back() == &frame.back());
  return 0;
}
