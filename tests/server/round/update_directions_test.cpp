// SPDX-License-Identifier: Apache-2.0
// Cosines with the mean, and norms beside the median, against a plain calculation.
#include "server/round/update_directions.hpp"

#include "kernels/generic/philox.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::codec;
using namespace fl::server;
namespace {

constexpr std::uint64_t parameters = 150'000;  // Several blocks, with every codec but sparse ones.
constexpr std::uint64_t statistics = 40;

std::vector<float> noise(std::uint64_t seed, float scale) {
  std::vector<float> values(parameters + statistics);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t word = philox::block_at(seed, 0, i).word[0];
    values[i] = scale * (static_cast<float>(word >> 8) * 0x1p-24F - 0.5F);
  }
  return values;
}

ReadValues values_of(const std::vector<float>& mean) {
  return [&mean](std::uint64_t first, std::span<float> out) {
    std::ranges::copy(std::span(mean).subspan(first, out.size()), out.begin());
    return success();
  };
}

struct Folder {
  MemFiles disk;
  Layout layout =
      Layout::make({{"w", {parameters - 7}}, {"b", {7}}, {"n.running_mean", {statistics}}}).value();

  Folder() { REQUIRE(disk.make_folder("/kept")); }

  Result<DirectionSums> try_sums_of(const std::vector<float>& update, const ReadValues& mean,
                                    const std::string& codec, const AdjustUpdate& adjust,
                                    std::span<const ElementRange> ranges) {
    const auto coded = disk.open("/kept/update", OpenMode::truncate).value();
    FileSink sink(*coded);
    const auto bytes = parse_codec(codec).value()->encode(layout, update, 1, sink).value();
    FileSource source(*coded);
    auto reader = PayloadReader::open(source, bytes, layout).value();
    return direction_sums(reader, adjust, mean, ranges);
  }
  DirectionSums sums_of(const std::vector<float>& update, const std::vector<float>& mean,
                        const std::string& codec = "none", const AdjustUpdate& adjust = {},
                        std::vector<ElementRange> ranges = {{0, parameters}}) {
    return try_sums_of(update, values_of(mean), codec, adjust, ranges).value();
  }
};

double product(const std::vector<float>& one, const std::vector<float>& other) {
  long double sum = 0;
  for (std::size_t i = 0; i < parameters; ++i)
    sum += static_cast<long double>(one[i]) * static_cast<long double>(other[i]);
  return static_cast<double>(sum);
}

TaskRecord task_of(std::int64_t id, const std::string& client) {
  TaskRecord task;
  task.id = TaskId{id};
  task.client = client;
  return task;
}

TEST_CASE("the sums are those of all parameters, and of no statistic") {
  Folder folder;
  const auto update = noise(1, 1);
  auto mean = noise(2, 3);
  const auto sums = folder.sums_of(update, mean);
  CHECK(sums.product == doctest::Approx(product(update, mean)).epsilon(1e-10));
  CHECK(sums.update_squares == doctest::Approx(product(update, update)).epsilon(1e-10));
  CHECK(sums.mean_squares == doctest::Approx(product(mean, mean)).epsilon(1e-10));
  auto other = update;
  for (std::uint64_t i = parameters; i < other.size(); ++i) other[i] = 1000;
  const auto again = folder.sums_of(other, mean);
  CHECK(again.product == sums.product);
  CHECK(again.update_squares == sums.update_squares);
}

TEST_CASE("an update counts as its block is decoded and adjusted") {
  Folder folder;
  const auto mean = noise(2, 1);
  const std::vector<float> update(parameters + statistics, 1.0F);
  const auto lossy = folder.sums_of(update, mean, "topk:0.25");
  CHECK(lossy.update_squares < 0.3 * parameters);
  CHECK(lossy.update_squares > 0.2 * parameters);
  // Adds the mean at its place, whatever the block.
  const AdjustUpdate add = [&](std::uint64_t first, std::span<float> values) -> Result<void> {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = mean[first + i];
    return {};
  };
  const auto adjusted = folder.sums_of(update, mean, "none", add);
  CHECK(adjusted.product == adjusted.mean_squares);
  CHECK(adjusted.update_squares == adjusted.mean_squares);
  const AdjustUpdate fail = [](std::uint64_t, std::span<float>) -> Result<void> {
    return Error(Errc::io, "no");
  };
  const std::vector<ElementRange> all{{0, parameters}};
  CHECK(folder.try_sums_of(update, values_of(mean), "none", fail, all).error().code() == Errc::io);
  const ReadValues lost = [](std::uint64_t, std::span<float>) -> Result<void> {
    return Error(Errc::io, "no");
  };
  CHECK(folder.try_sums_of(update, lost, "none", {}, all).error().code() == Errc::io);
}

TEST_CASE("the sums of ranges are those of their elements alone") {
  Folder folder;
  const auto update = noise(1, 1);
  const auto mean = noise(2, 3);
  // Inside a block, over the border of two, to the last parameter; touching ranges are two.
  const std::vector<std::vector<ElementRange>> some{
      {{5, 6}},
      {{0, 10}, {65'000, 66'000}, {66'000, 66'001}, {parameters - 9, parameters}},
      {{65'536, 131'072}},
      {{131'071, parameters}},
      {}};
  for (const auto& ranges : some) {
    double expected = 0;
    for (const ElementRange& range : ranges) {
      for (std::uint64_t i = range.begin; i < range.end; ++i)
        expected += static_cast<double>(update[i]) * static_cast<double>(mean[i]);
    }
    for (const std::string codec : {"none", "topk:1"}) {  // Values of other blocks.
      CAPTURE(codec);
      CHECK(folder.sums_of(update, mean, codec, {}, ranges).product ==
            doctest::Approx(expected).epsilon(1e-10));
    }
  }
}

TEST_CASE("cosines and norms follow from the sums; without a norm there is none") {
  UpdateDirections directions;
  directions.add(task_of(1, "same"), {.product = 8, .update_squares = 16, .mean_squares = 4});
  directions.add(task_of(2, "flipped"), {.product = -8, .update_squares = 16, .mean_squares = 4});
  directions.add(task_of(3, "across"), {.product = 0, .update_squares = 64, .mean_squares = 4});
  directions.add(task_of(4, "nothing"), {.product = 0, .update_squares = 0, .mean_squares = 4});
  const auto found = directions.finish();
  REQUIRE(found.size() == 4);
  CHECK(found[0].cosine == 1.0);
  CHECK(found[1].cosine == -1.0);
  CHECK(found[2].cosine == 0.0);
  CHECK_FALSE(found[3].cosine);
  CHECK(found[0].relative_norm == 1.0);  // The median of 0, 4, 4 and 8 is 4.
  CHECK(found[2].relative_norm == 2.0);
  CHECK(found[3].relative_norm == 0.0);
  CHECK(found[1].client == "flipped");
  CHECK(found[1].task == TaskId{2});

  directions.add(task_of(1, "a"), {.product = 0, .update_squares = 0, .mean_squares = 0});
  const auto none = directions.finish();
  REQUIRE(none.size() == 1);
  CHECK_FALSE(none[0].cosine);
  CHECK_FALSE(none[0].relative_norm);
}

}  // namespace
}  // namespace fl::test
