// SPDX-License-Identifier: Apache-2.0
// DC-ASGD's correction of a stale update, against its formula.
#include "server/versions/delay_compensation.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

namespace fl::test {

using namespace fl::server;
namespace {

std::shared_ptr<const ModelVersion> version_of(MemFiles& files, Version version,
                                               const std::vector<float>& values) {
  const Layout layout = Layout::make({{"w", {static_cast<std::int64_t>(values.size())}}}).value();
  auto writer = CheckpointWriter::create(files, "/checkpoints", version, layout, {}).value();
  writer.append(values).value();
  const CheckpointRecord record = writer.finish().value();
  return open_version(files, "/checkpoints", record, layout).value();
}

TEST_CASE("a stale update moves by factor * u * u * (now - then), and statistics stay") {
  MemFiles files;
  const auto then = version_of(files, 1, {1, 1, 1, 1, 1});
  const auto now = version_of(files, 2, {1, 2, 3, -1, 9});
  const DelayCompensation compensate(then, now, 0.5, 4);
  std::vector<float> update{2, 2, -2, 2, 7};
  // In two parts, as blocks arrive.
  REQUIRE(compensate(0, std::span(update).first(2)));
  REQUIRE(compensate(2, std::span(update).subspan(2)));
  CHECK(update == std::vector<float>{2, 0, -6, 6, 7});
  std::vector<float> behind{7};
  REQUIRE(compensate(4, behind));
  CHECK(behind == std::vector<float>{7});
}

}  // namespace
}  // namespace fl::test
