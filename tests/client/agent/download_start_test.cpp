// SPDX-License-Identifier: Apache-2.0
// Where a download begins: for each combination of what this client has received and what the
// server answers.
#include "client/agent/download.hpp"

#include <doctest/doctest.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::client;
namespace {

using client::DownloadStart;
using client::ReceivedPart;
using client::start_of;

constexpr std::uint64_t all_bytes =
    1000;  // The size of the transfer that the server offers, number 7.
constexpr std::uint64_t in_memory_bytes = 300;
constexpr std::uint64_t on_disk_bytes = 500;

wire::ModelHeader answer_of(bool is_full, std::uint64_t offset) {
  wire::ModelHeader answer;
  answer.set_transfer(7);
  answer.set_full(is_full);
  answer.set_bytes(all_bytes);
  answer.set_offset(offset);
  return answer;
}

const ReceivedPart nothing_on_disk{.full = true};

char letter(DownloadStart start) {
  switch (start) {
    case DownloadStart::go_on: return 'm';
    case DownloadStart::from_disk: return 'd';
    case DownloadStart::anew: return '0';
    case DownloadStart::refused: return '-';
  }
  return '?';
}

struct Memory {
  const char* name;
  std::vector<ReceivedPart> part;  // One, or none.
};
const std::array<Memory, 5> memories{
    {{"nothing in memory", {}},
     {"this model in memory", {{7, true, all_bytes, in_memory_bytes}}},
     {"these deltas in memory", {{7, false, all_bytes, in_memory_bytes}}},
     {"another model in memory", {{8, true, all_bytes, in_memory_bytes}}},
     {"other deltas in memory", {{8, false, all_bytes, in_memory_bytes}}}}};

struct Disk {
  const char* name;
  ReceivedPart part;
};
const std::array<Disk, 3> disks{{{"nothing on disk", nothing_on_disk},
                                 {"this model on disk", {7, true, 0, on_disk_bytes}},
                                 {"another model on disk", {8, true, 0, on_disk_bytes}}}};

const std::array<std::uint64_t, 5> offsets{0, in_memory_bytes, on_disk_bytes, 400, all_bytes};

}  // namespace

// The answer offers transfer 7. One letter for each of the offsets 0, 300 (the end of what is in
// memory), 500 (the end of what is on the disk), 400 and 1000 (wrong ones): m goes on in memory, d
// goes on from the disk, 0 begins anew, - is refused.
TEST_CASE("a download goes on only at the byte where the received part of this transfer ends") {
  struct Row {
    std::array<const char*, 3> full;    // By what is on the disk, as in `disks`.
    std::array<const char*, 3> deltas;  // What follows from an answer with deltas.
  };
  const std::array<Row, 5> table{{
      // Full model: disk empty, this, other. Deltas: disk empty, this, other.
      {{"0----", "0-d--", "0----"}, {"0----", "0----", "0----"}},  // Nothing in memory.
      {{"0m---", "0m---", "0m---"}, {"0----", "0----", "0----"}},  // This model.
      {{"0----", "0----", "0----"}, {"0m---", "0m---", "0m---"}},  // These deltas.
      {{"0----", "0----", "0----"}, {"0----", "0----", "0----"}},  // Another model.
      {{"0----", "0----", "0----"}, {"0----", "0----", "0----"}},  // Other deltas.
  }};
  for (std::size_t m = 0; m < memories.size(); ++m) {
    for (std::size_t d = 0; d < disks.size(); ++d) {
      for (const bool is_full : {true, false}) {
        CAPTURE(memories[m].name);
        CAPTURE(disks[d].name);
        CAPTURE(is_full);
        const auto& part = memories[m].part;
        std::string starts;
        for (const std::uint64_t offset : offsets)
          starts += letter(start_of(answer_of(is_full, offset),
                                    part.empty() ? nullptr : &part.front(), disks[d].part));
        CHECK(starts == (is_full ? table[m].full : table[m].deltas)[d]);
      }
    }
  }
}

TEST_CASE("a transfer in memory without a byte yet goes on at byte 0") {
  for (const bool is_full : {true, false}) {
    const ReceivedPart part{7, is_full, all_bytes, 0};
    CHECK(start_of(answer_of(is_full, 0), &part, nothing_on_disk) == DownloadStart::go_on);
    CHECK(start_of(answer_of(!is_full, 0), &part, nothing_on_disk) == DownloadStart::anew);
  }
}

TEST_CASE("a transfer in memory that now has another size does not go on") {
  for (const bool is_full : {true, false}) {
    const ReceivedPart part{7, is_full, all_bytes + 1, in_memory_bytes};
    CHECK(start_of(answer_of(is_full, in_memory_bytes), &part, nothing_on_disk) ==
          DownloadStart::refused);
    CHECK(start_of(answer_of(is_full, 0), &part, nothing_on_disk) == DownloadStart::anew);
  }
}

TEST_CASE("without a part on the disk, nothing begins from the disk") {
  wire::ModelHeader answer = answer_of(true, 0);
  answer.set_transfer(0);  // As the disk without a part has it.
  CHECK(start_of(answer, nullptr, nothing_on_disk) == DownloadStart::anew);
}

TEST_CASE("a part in memory wins over a part of this transfer on the disk") {
  const ReceivedPart on_disk{7, true, 0, on_disk_bytes};
  const ReceivedPart same{7, true, all_bytes, on_disk_bytes};
  CHECK(start_of(answer_of(true, on_disk_bytes), &same, on_disk) == DownloadStart::go_on);
  const ReceivedPart other{8, true, all_bytes, in_memory_bytes};
  CHECK(start_of(answer_of(true, on_disk_bytes), &other, on_disk) == DownloadStart::refused);
}

}  // namespace fl::test
