// SPDX-License-Identifier: Apache-2.0
// Transfers: sources of several segments, chunk sizes that adapt to the line, checks of chunks.
#include "shared/wire/transfer.hpp"

#include "tests/support/mem_files.hpp"
#include "tests/support/memory_link.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace fl::test {
namespace {

using namespace std::chrono_literals;

std::shared_ptr<File> file_with(MemFiles& files, const std::string& name,
                                const std::string& content) {
  std::shared_ptr<File> file = files.open(name, OpenMode::create).value();
  REQUIRE(file->write_at(0, bytes_of(std::string_view(content))));
  return file;
}

Message chunk(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
  const auto content = std::make_shared<std::string>(bytes, 'x');
  wire::Header header;
  header.mutable_chunk()->set_transfer(transfer);
  header.mutable_chunk()->set_offset(offset);
  return Message(header, Payload(content, bytes_of(std::string_view(*content))));
}

TEST_CASE("segments read as one run of bytes; no block goes beyond a segment's end") {
  MemFiles files;
  const SegmentSource source({Segment{file_with(files, "a", "0123456789"), 2, 3},
                              Segment{file_with(files, "b", "abcdef"), 0, 6}});
  CHECK(source.bytes() == 9);
  std::string whole;
  for (std::uint64_t at = 0; at < source.bytes();) {
    const auto block = source.read(at, 4);
    REQUIRE(block);
    whole += text_of(block->bytes());
    at += block->bytes().size();
    if (at == 3) CHECK(block->bytes().size() == 3);
  }
  CHECK(whole == "234abcdef");
  const SegmentSource short_one({Segment{file_with(files, "c", "12"), 0, 5}});
  CHECK(short_one.read(0, 5).error().code() == Errc::corrupt);
}

TEST_CASE("a file on a disk is sent from where it lies, and one that was cut is an error") {
  const TemporaryFolder folder;
  const std::size_t page = 4096;
  std::string content;
  for (std::size_t i = 0; i < 5 * page; ++i) content += static_cast<char>('a' + i % 23);
  const auto path = folder.path() / "a";
  const std::shared_ptr<File> file = posix_files().open(path, OpenMode::create).value();
  REQUIRE(file->write_at(0, bytes_of(std::string_view(content))));
  const SegmentSource source(
      {Segment{file, 3, content.size() - 3, file->map(content.size()).value()}});
  const auto first = source.read(0, 2 * page);
  REQUIRE(first);
  CHECK(text_of(first->bytes()) == content.substr(3, 2 * page));
  const auto again = source.read(page, page);
  REQUIRE(again);
  CHECK(again->bytes().data() == first->bytes().data() + page);  // No copy.

  REQUIRE(file->truncate(3 * page));
  CHECK(source.read(4 * page, 100).error().code() == Errc::corrupt);
  // Bytes that the file still has can be sent, by reading them.
  const auto rest = source.read(2 * page, 100);
  REQUIRE(rest);
  CHECK(text_of(rest->bytes()) == content.substr(3 + 2 * page, 100));
  CHECK(text_of(again->bytes()).substr(0, 100) == content.substr(3 + page, 100));
}

TEST_CASE("chunks grow on a fast line, shrink on a slow one, and stay within their bounds") {
  ChunkSize size(limits::chunk_bytes_max);
  const std::size_t first = size.bytes();
  size.sent(first, 1ms);
  CHECK(size.bytes() == 2 * first);
  size.sent(10, 1ms);  // A short last chunk does not count.
  CHECK(size.bytes() == 2 * first);
  for (int i = 0; i < 10; ++i) size.sent(size.bytes(), 1ms);
  CHECK(size.bytes() == limits::chunk_bytes_max);
  for (int i = 0; i < 10; ++i) size.sent(size.bytes(), 1s);
  CHECK(size.bytes() == limits::chunk_bytes_min);
  CHECK(ChunkSize(1).bytes() == limits::chunk_bytes_min);
  CHECK(ChunkSize(limits::chunk_bytes_min).bytes() == limits::chunk_bytes_min);
}

TEST_CASE("only the next chunk of a transfer is accepted; the error says what is wrong") {
  CHECK(check_chunk(chunk(7, 100, 50), 7, 100, 150));
  const auto reason = [](const Message& message) {
    return check_chunk(message, 7, 100, 150).error();
  };
  CHECK(reason(chunk(8, 100, 50)).message() == "a chunk of transfer 8, expected transfer 7");
  CHECK(reason(chunk(7, 100, 0)).message() == "an empty chunk at byte 100");
  CHECK(reason(chunk(7, 50, 50)).message() ==
        "a duplicated chunk: it begins at byte 50, expected byte 100");
  CHECK(reason(chunk(7, 101, 49)).message() ==
        "a reordered or missing chunk: it begins at byte 101, expected byte 100");
  CHECK(reason(chunk(7, 100, 51)).code() == Errc::too_large);
  CHECK(check_chunk(chunk(7, 1ull << 63, 1), 7, 100, 150).error().code() == Errc::protocol);
}

/// Receives a transfer of `bytes` bytes from `offset` on and checks its chunks by check_chunk().
Awaitable<void> take(std::shared_ptr<MemoryLink> link, std::uint64_t offset, std::uint64_t bytes,
                     std::string& got) {
  while (offset < bytes) {
    auto message = co_await link->receive();
    REQUIRE(message);
    CHECK(check_chunk(*message, 5, offset, bytes));
    got += text_of(message->payload.bytes());
    offset += message->payload.bytes().size();
  }
}

Awaitable<void> give(std::shared_ptr<MemoryLink> link, const SegmentSource& source,
                     std::uint64_t offset, Result<void>& sent) {
  sent = co_await send_chunks(*link, 5, source, offset, limits::chunk_bytes_max);
}

TEST_CASE("a transfer arrives whole over a slow line, from the start or from the middle") {
  std::string content;
  for (int i = 0; content.size() < 1'500'000; ++i) content += std::to_string(i) + ",";
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{700'001}}) {
    Simulation simulation;
    MemFiles files;
    const SegmentSource source({Segment{file_with(files, "a", content), 0, content.size()}});
    Line slow;
    slow.bytes_per_s = 500e3;
    auto [from, to] = MemoryLink::make({simulation.io.get_executor(), "to", slow},
                                       {simulation.io.get_executor(), "from", Line()}, nullptr);
    std::string got;
    Result<void> sent = Error(Errc::internal, "not sent");
    simulation.spawn(give(from, source, offset, sent));
    simulation.spawn(take(to, offset, content.size(), got));
    simulation.run();
    CHECK(sent);
    CHECK(got == content.substr(offset));
    CHECK(seconds(simulation.time.elapsed()) >=
          static_cast<double>(content.size() - offset) / 500e3);
    CHECK(from->bytes_sent() == to->bytes_received());
  }
}

/// A link whose peer has room for so many bytes at a time. It keeps the bytes that are sent.
class NarrowLink final : public Link {
 public:
  NarrowLink(net::any_io_executor executor, std::size_t room)
      : executor_(std::move(executor)), room_(room) {}
  Awaitable<Result<Message>> receive() override { co_return Error(Errc::unavailable, "narrow"); }
  Awaitable<Result<void>> send(Message message) override {
    chunks.push_back(message.payload.bytes().size());
    co_return success();
  }
  std::size_t payload_room() const override { return room_; }
  void close() override {}
  net::any_io_executor executor() const override { return executor_; }
  std::uint64_t bytes_received() const override { return 0; }
  std::uint64_t bytes_sent() const override { return 0; }
  const std::string& remote() const override { return remote_; }

  std::vector<std::size_t> chunks;

 private:
  net::any_io_executor executor_;
  std::size_t room_;
  std::string remote_;
};

Awaitable<void> give_all(NarrowLink& link, const SegmentSource& source) {
  CHECK(co_await send_chunks(link, 5, source, 0, limits::chunk_bytes_max));
}

TEST_CASE("chunks do not exceed what the peer has room for") {
  Simulation simulation;
  MemFiles files;
  const std::string content(500'000, 'x');
  const SegmentSource source({Segment{file_with(files, "a", content), 0, content.size()}});
  NarrowLink link(simulation.io.get_executor(), 100'000);
  simulation.spawn(give_all(link, source));
  simulation.run();
  CHECK(link.chunks ==
        std::vector<std::size_t>{65'536, 100'000, 100'000, 100'000, 100'000, 34'464});
}

Awaitable<void> read_until_the_end(std::shared_ptr<MemoryLink> link) {
  for (;;) {
    const auto message = co_await link->receive();
    if (!message) co_return;
  }
}

TEST_CASE("a sender of bulk gets an error when the line breaks") {
  Simulation simulation;
  MemFiles files;
  const std::string content(3'000'000, 'x');
  const SegmentSource source({Segment{file_with(files, "a", content), 0, content.size()}});
  Line short_lived;
  short_lived.bytes_max = 1'000'000;
  auto [from, to] = MemoryLink::make({simulation.io.get_executor(), "to", short_lived},
                                     {simulation.io.get_executor(), "from", Line()}, nullptr);
  Result<void> sent;
  simulation.spawn(give(from, source, 0, sent));
  simulation.spawn(read_until_the_end(to));
  simulation.run();
  REQUIRE(!sent);
  CHECK(sent.error().code() == Errc::unavailable);
}

}  // namespace
}  // namespace fl::test
