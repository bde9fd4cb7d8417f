// SPDX-License-Identifier: Apache-2.0
// A round's updates as a robust rule reads them from the spool.
#include "server/round/spooled_rows.hpp"

#include "shared/codec/spec/parser.hpp"
#include "tests/support/allocated_bytes.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {

using namespace fl::codec;
using namespace fl::server;
namespace {

/// Updates of many blocks, on a disk that counts open files.
struct Updates {
  static constexpr std::uint64_t elements = 200'000;
  MemFiles disk;
  Layout layout = Layout::make({{"w", {elements - 3}}, {"a", {1}}, {"b", {2}}}).value();
  SpooledRows rows;
  std::atomic<int> most_open = 0;

  explicit Updates(int count) {
    REQUIRE(disk.make_folder("/spool"));
    for (int i = 0; i < count; ++i) {
      const std::string path = "/spool/" + std::to_string(i);
      std::vector<float> values(elements);
      for (std::size_t at = 0; at < values.size(); ++at) values[at] = value(i, at);
      std::uint64_t bytes = 0;
      {
        const auto file = disk.open(path, OpenMode::create).value();
        FileSink sink(*file);
        bytes = parse_codec("none").value()->encode(layout, values, 1, sink).value();
      }
      SpooledRows::Source source;
      source.open = [this, path]() -> Result<std::shared_ptr<File>> {
        FL_TRY(auto file, disk.open(path, OpenMode::read));
        int most = most_open;
        while (most < disk.open_files() &&
               !most_open.compare_exchange_weak(most, disk.open_files())) {
        }
        return std::shared_ptr<File>(std::move(file));
      };
      source.adjust = [] {
        return AdjustUpdate([](std::uint64_t, std::span<float> some) -> Result<void> {
          for (float& x : some) x += 0.5F;
          return {};
        });
      };
      source.named = [i](const Error& error) { return error.at("update " + std::to_string(i)); };
      REQUIRE(rows.add(std::move(source), bytes, layout));
    }
  }
  static float value(int update, std::size_t at) {
    return static_cast<float>(update) + static_cast<float>(at % 1000);
  }
};

TEST_CASE("only as many updates are open as there are lanes, and none between two reads") {
  constexpr int count = 50;
  constexpr std::size_t lanes_max = 3;
  Updates updates(count);
  CHECK(updates.disk.open_files() == 0);
  Lanes lanes(lanes_max, count);
  constexpr std::size_t run = 3000;
  std::vector<float> out(count * run);
  for (std::uint64_t first = 0; first < Updates::elements; first += run) {
    const auto some = std::min<std::uint64_t>(run, Updates::elements - first);
    REQUIRE(updates.rows.read(first, some, lanes, out));
    CHECK(updates.disk.open_files() == 0);
    bool is_right = true;
    for (int i = 0; i < count; ++i) {
      for (std::size_t at = 0; at < some; at += 7) {
        is_right = is_right && out[static_cast<std::size_t>(i) * some + at] ==
                                   Updates::value(i, first + at) + 0.5F;
      }
    }
    CHECK(is_right);
  }
  CHECK(updates.most_open <= static_cast<int>(lanes.count()));
}

TEST_CASE("an update that can't be opened again is named, and nothing stays open") {
  Updates updates(3);
  REQUIRE(updates.disk.remove("/spool/1"));
  Lanes lanes(1, 3);
  std::vector<float> out(3 * 100);
  const auto read = updates.rows.read(0, 100, lanes, out);
  REQUIRE(!read);
  CHECK(read.error().message().find("update 1") != std::string::npos);
  CHECK(read.error().code() == Errc::not_found);
  CHECK(updates.disk.open_files() == 0);
}

TEST_CASE("right factors that follow from a few bytes are kept once, or within a limit") {
  constexpr int count = 8;
  constexpr std::size_t cols = 200'000;
  constexpr std::size_t right_bytes = 4 * cols * sizeof(float);
  const Layout layout = Layout::make({{"w", {10, cols}}}).value();
  struct Case {
    const char* spec;
    std::size_t rights_bytes_max;
  };
  // The updates of the first case have one key. Those of the second have one each, and too little
  // room for the factors.
  for (const Case& one : {Case{"gradzip:4", count * right_bytes},
                          Case{"gradzip:4,projection=own", count * right_bytes - 1}}) {
    CAPTURE(one.spec);
    MemFiles disk;
    SpooledRows rows(one.rights_bytes_max);
    std::vector<std::vector<float>> decoded;
    for (int i = 0; i < count; ++i) {
      std::vector<float> values(layout.elements());
      for (std::size_t at = 0; at < values.size(); ++at) values[at] = Updates::value(i, at);
      const std::string path = std::to_string(i);
      const auto file = disk.open(path, OpenMode::create).value();
      FileSink sink(*file);
      const CodeInputs inputs{static_cast<std::uint64_t>(i), 99};
      const std::uint64_t bytes = parse_codec(one.spec)
                                      .value()
                                      ->encode(layout, values, inputs, sink, block_elements_default)
                                      .value();
      FileSource from(*file);
      PayloadReader::open(from, bytes, layout).value().decode_all(values).value();
      values.resize(2 * block_elements_default);
      decoded.push_back(std::move(values));
      SpooledRows::Source source;
      source.open = [&disk, path]() -> Result<std::shared_ptr<File>> {
        FL_TRY(auto opened, disk.open(path, OpenMode::read));
        return std::shared_ptr<File>(std::move(opened));
      };
      source.adjust = [] { return AdjustUpdate(); };
      source.named = [](const Error& error) { return error; };
      REQUIRE(rows.add(std::move(source), bytes, layout));
    }
    Lanes lanes(2, count);
    std::vector<float> out(count * block_elements_default);
    const std::size_t before = allocated_bytes();
    for (const std::size_t block : {0U, 1U}) {
      REQUIRE(rows.read(block * block_elements_default, block_elements_default, lanes, out));
      for (std::size_t i = 0; i < count; ++i) {
        const auto values = std::span(decoded[i]).subspan(block * block_elements_default);
        CHECK(std::ranges::equal(
            values.first(block_elements_default),
            std::span(out).subspan(i * block_elements_default, block_elements_default)));
      }
    }
    const std::size_t blocks = count * block_elements_default * sizeof(float);
    CHECK(allocated_bytes() < before + blocks + 2 * right_bytes);
  }
}

}  // namespace
}  // namespace fl::test
