// SPDX-License-Identifier: Apache-2.0
// Framing: what is sent arrives unchanged, and whatever bytes a peer sends, the worst result is an
// error.
#include "shared/wire/message.hpp"

#include "shared/base/limits.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace fl::test {
namespace {

wire::Header chunk_header() {
  wire::Header header;
  header.mutable_chunk()->set_transfer(0x1234'5678'9abc'def0);
  header.mutable_chunk()->set_offset(77);
  return header;
}

Result<Message> parse(const std::string& frame) {
  const auto owner = std::make_shared<std::string>(frame);
  return parse_frame(owner, bytes_of(std::string_view(*owner)));
}

std::string with_length(std::uint32_t header_bytes, std::string_view rest) {
  std::string frame(4, '\0');
  store(std::as_writable_bytes(std::span(frame)), 0, header_bytes);
  return frame.append(rest);
}

TEST_CASE("header and payload arrive unchanged, and the payload keeps its buffer alive") {
  auto parsed = parse(frame_header(chunk_header()) + "payload");
  REQUIRE(parsed);
  const Message message = std::move(*parsed);  // The buffer's last owner.
  CHECK(message.header.chunk().transfer() == 0x1234'5678'9abc'def0);
  CHECK(message.header.chunk().offset() == 77);
  CHECK(text_of(message.payload.bytes()) == "payload");
  CHECK(kind_name(message.header) == "Chunk");
}

TEST_CASE("a frame cut anywhere in its header is an error that says what is missing") {
  const std::string frame = frame_header(chunk_header());
  for (std::size_t bytes = 0; bytes < frame.size(); ++bytes) {
    const auto parsed = parse(frame.substr(0, bytes));
    INFO(bytes, " bytes");
    REQUIRE(!parsed);
    CHECK(parsed.error().code() == Errc::protocol);
  }
  CHECK(parse("abc").error().message() == "a message of 3 bytes is too short for a header length");
}

TEST_CASE("a frame with any flipped bit is refused, or the parsed message keeps the limits") {
  const std::string frame = frame_header(chunk_header()) + "payload";
  for (std::size_t bit = 0; bit < 8 * frame.size(); ++bit) {
    std::string flipped = frame;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const auto parsed = parse(flipped);
    INFO("bit ", bit);
    if (!parsed) {
      const bool is_peers_fault =
          parsed.error().code() == Errc::protocol || parsed.error().code() == Errc::too_large;
      CHECK(is_peers_fault);
    } else {
      CHECK(parsed->header.kind_case() != wire::Header::KIND_NOT_SET);
      CHECK((parsed->payload.empty() || parsed->header.has_chunk()));
      CHECK(parsed->payload.bytes().size() < frame.size());
    }
  }
}

TEST_CASE("a header's length is checked before the header is parsed") {
  const auto too_long = parse(with_length(limits::header_bytes_max + 1, ""));
  REQUIRE(!too_long);
  CHECK(too_long.error().code() == Errc::too_large);
  CHECK(parse(with_length(0xffff'ffff, "x")).error().code() == Errc::too_large);
  CHECK(parse(with_length(10, "123456789")).error().code() == Errc::protocol);
}

TEST_CASE(
    "unknown kinds, invalid protobuf, payloads without a chunk and too large chunks are refused") {
  CHECK(parse(with_length(0, "")).error().message() == "a message of an unknown kind");
  CHECK(parse(with_length(2, "\xff\xff")).error().code() == Errc::protocol);
  wire::Header bye;
  bye.mutable_bye();
  const auto padded = parse(frame_header(bye) + "x");
  REQUIRE(!padded);
  CHECK(padded.error().message() == "1 payload bytes after Bye, which has no payload");
  const std::string head = frame_header(chunk_header());
  CHECK(parse(head + std::string(limits::chunk_bytes_max, 'x')));
  CHECK(parse(head + std::string(limits::chunk_bytes_max + 1, 'x')).error().code() ==
        Errc::too_large);
}

TEST_CASE("equal messages have equal bytes, and a newer program's field is kept") {
  CHECK(frame_header(chunk_header()) == frame_header(chunk_header()));
  // Bye with field 99, a varint, which this version does not know.
  const std::string newer("\x8a\x02\x03\x98\x06\x05", 6);
  const auto parsed = parse(with_length(static_cast<std::uint32_t>(newer.size()), newer));
  REQUIRE(parsed);
  CHECK(parsed->header.has_bye());
  CHECK(frame_header(parsed->header).substr(4) == newer);
}

}  // namespace
}  // namespace fl::test
