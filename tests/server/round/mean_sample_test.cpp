// SPDX-License-Identifier: Apache-2.0
// Which elements of the mean a round compares its updates with.
#include "server/round/mean_sample.hpp"

#include "shared/base/limits.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

/// Checks that they ascend without overlap, too.
std::uint64_t elements_of(const MeanSample& sample) {
  std::uint64_t count = 0;
  std::uint64_t end = 0;
  for (const ElementRange& range : sample.ranges()) {
    CHECK(range.begin >= end);
    CHECK(range.begin < range.end);
    end = range.end;
    count += range.end - range.begin;
  }
  return count;
}

/// Values that tell where they are from.
float value_at(std::uint64_t element) { return static_cast<float>(element % 8'388'593); }

/// Reads all of the mean in steps of an odd length, as the next version is made.
void read_all(MeanSample& sample, std::uint64_t elements) {
  const ReadValues mean = [](std::uint64_t first, std::span<float> out) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = value_at(first + i);
    return success();
  };
  const ReadValues kept = sample.keep_of(mean);
  std::vector<float> out(77'777);
  for (std::uint64_t first = 0; first < elements; first += out.size()) {
    const auto some =
        static_cast<std::size_t>(std::min<std::uint64_t>(out.size(), elements - first));
    REQUIRE(kept(first, std::span(out).first(some)));
    CHECK(out[some - 1] == value_at(first + some - 1));
  }
}

TEST_CASE("a model that is not larger than the sample is all in it, without its statistics") {
  const std::uint64_t parameters = limits::mean_sample_elements;
  const auto layout = Layout::make({{"w", {parameters}}, {"n.running_mean", {40}}}).value();
  const MeanSample sample(layout, parameters);
  CHECK(sample.ranges().front().begin == 0);
  CHECK(elements_of(sample) == parameters);
  const auto none = Layout::make({{"n.running_mean", {40}}}).value();
  CHECK(MeanSample(none, 0).ranges().empty());
}

TEST_CASE("of a larger one, pieces at even distances are kept as they were read") {
  const std::uint64_t first = 3'000'001;
  const std::uint64_t second = 9'000'000;
  const std::uint64_t parameters = first + second;
  const auto layout =
      Layout::make({{"a", {first}}, {"b", {second}}, {"n.running_mean", {40}}}).value();
  MeanSample sample(layout, parameters);
  CHECK(sample.ranges().size() == 8);
  CHECK(elements_of(sample) == limits::mean_sample_elements);
  CHECK(sample.ranges().front().begin < parameters / 8);
  CHECK(sample.ranges().back().begin >= parameters / 8 * 7);
  read_all(sample, parameters + 40);
  for (const ElementRange& range : sample.ranges()) {
    std::vector<float> values(range.end - range.begin);
    sample.read(range.begin, values);
    CHECK(values.front() == value_at(range.begin));
    CHECK(values.back() == value_at(range.end - 1));
    values.resize(3);
    sample.read(range.end - 3, values);
    CHECK(values.back() == value_at(range.end - 1));
  }
}

TEST_CASE("no element is in the sample of a slightly larger model twice") {
  // The third piece begins with the last, short block of "a", and the fourth with "b".
  const std::uint64_t first = 2 * codec::block_elements_default + 60'000;
  const std::uint64_t second = limits::mean_sample_elements + 1000 - first;
  const auto layout = Layout::make({{"a", {first}}, {"b", {second}}}).value();
  const MeanSample sample(layout, layout.elements());
  CHECK(sample.ranges()[2].begin == 2 * codec::block_elements_default);
  CHECK(sample.ranges()[2].end == first);
  CHECK(sample.ranges()[3].begin == first);
  elements_of(sample);
}

TEST_CASE("a sample of a model of many small tensors is no smaller") {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 3000; ++i) tensors.push_back({"t" + std::to_string(i), {1000}});
  const auto layout = Layout::make(tensors).value();
  MeanSample sample(layout, layout.elements());
  CHECK(elements_of(sample) == limits::mean_sample_elements);
  read_all(sample, layout.elements());
}

}  // namespace
}  // namespace fl::test
