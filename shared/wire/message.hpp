// SPDX-License-Identifier: Apache-2.0
// A message (a protobuf header and raw payload bytes) and its encoding for the wire. Any thread.
#pragma once

#include "proto/wire.pb.h"
#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/base/io/digest.hpp"

#include <memory>
#include <string>

namespace fl {

/// Changes when an end that does not know of a change of the schema (proto/wire.proto) or of the
/// payload format (shared/codec/payload/reader.hpp) would misunderstand the other end. What is new
/// and can be left out is a feature (features.hpp). A server rejects a client with another version
/// in its Hello.
inline constexpr std::uint32_t protocol_version = 5;

/// Bytes, and a shared owner that keeps them alive: a receive buffer, a block of a file, a model.
class Payload {
 public:
  Payload() = default;
  Payload(std::shared_ptr<const void> owner, Bytes bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}
  [[nodiscard]] Bytes bytes() const { return bytes_; }
  [[nodiscard]] bool empty() const { return bytes_.empty(); }

 private:
  std::shared_ptr<const void> owner_;
  Bytes bytes_;
};

class Message {
 public:
  explicit Message(wire::Header head, Payload body = {})
      : header(std::move(head)), payload(std::move(body)) {}

  wire::Header header;
  Payload payload;
};

/// `too_large`: the header exceeds its limit, so the message can't be sent.
[[nodiscard]] Result<void> check_header_size(const wire::Header& header);

/// The beginning of a message on the wire: header length and header. The payload follows unchanged.
[[nodiscard]] std::string frame_header(const wire::Header& header);

/// Parses one WebSocket message. `owner` keeps `bytes` alive; the payload points into them. Sizes
/// are checked before anything is parsed or allocated. `protocol`: an invalid message, a header
/// without a kind, or a payload with another kind than Chunk. `too_large`: a header or a chunk over
/// its limit.
[[nodiscard]] Result<Message> parse_frame(std::shared_ptr<const void> owner, Bytes bytes);

/// The name of the message's kind, for logs and errors: "Offer", "Chunk"; "nothing" without a kind.
[[nodiscard]] std::string kind_name(const wire::Header& header);

}  // namespace fl
