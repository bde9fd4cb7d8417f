// A message as both ends see it: a protobuf header and raw payload bytes, and its framing.
// Values; any thread.
#pragma once

#include "proto/wire.pb.h"
#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/base/io/digest.hpp"

#include <memory>
#include <string>

namespace fl {

/// Another one for another schema (wire.proto) or another format of payloads (reader.hpp), so that
/// who can't understand each other part before they begin.
inline constexpr std::uint32_t protocol_version = 3;

/// Bytes and whoever keeps them alive: a receive buffer, a file block, a published model.
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

/// The first two parts of a message on the wire; the payload follows as it lies.
[[nodiscard]] std::string frame_header(const wire::Header& header);

/// Takes one WebSocket message apart. `owner` keeps `bytes` alive; the payload points into them.
/// Sizes are checked before anything is parsed or allocated; a header without a kind, or a payload
/// on anything but a Chunk, is a protocol error.
[[nodiscard]] Result<Message> parse_frame(std::shared_ptr<const void> owner, Bytes bytes);

/// "Offer", "Chunk": for logs and errors.
[[nodiscard]] std::string kind_name(const wire::Header& header);

/// A digest out of a protobuf bytes field; `field` names it in the error.
[[nodiscard]] Result<Digest> digest_field(const std::string& raw, std::string_view field);

}  // namespace fl
