// SPDX-License-Identifier: Apache-2.0
// Model versions on the disk, and a file of initial weights from the user, which may be a
// checkpoint of another run.
#include "server/versions/checkpoints.hpp"
#include "shared/params/safetensors.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <numeric>

namespace fl::test {

using namespace fl::server;
namespace {

class WeightsFile {
 public:
  /// Makes a checkpoint with the values 0, 1, 2, ...
  explicit WeightsFile(const std::vector<TensorSpec>& tensors) {
    const Layout layout = Layout::make(tensors).value();
    std::vector<float> values(layout.elements());
    std::iota(values.begin(), values.end(), 0.0F);
    std::string bytes = safetensors_header(layout, {});
    bytes.append(reinterpret_cast<const char*>(values.data()), layout.bytes());
    files_.make_folder("/data").value();
    files_.write_atomically(path, bytes_of(std::string_view(bytes))).value();
  }
  Result<InitialWeights> read(const char* strategy) {
    const Layout model = Layout::make({{"body", {2, 2}}, {"head.weight", {3}}}).value();
    return read_initial_weights(files_, path, model, *parse_strategy(strategy).value());
  }

  static constexpr const char* path = "/data/weights.safetensors";

 private:
  MemFiles files_;
};

TEST_CASE("a version is read as it was written, and a changed file is corrupt") {
  MemFiles files;
  const Layout layout = Layout::make({{"w", {2, 2}}, {"b", {3}}}).value();
  auto writer = CheckpointWriter::create(files, "/models", 12, layout, {{"run", "mine"}}).value();
  writer.append(std::vector<float>{1, -5, 3}).value();
  writer.append(std::vector<float>{4, 0, 2, 1}).value();
  const CheckpointRecord record = writer.finish().value();
  CHECK(record.version == 12);
  CHECK(record.file == "round-000012.safetensors");
  CHECK(files.list("/models").value() == std::vector<std::string>{record.file});

  const auto version = open_version(files, "/models", record, layout).value();
  std::vector<float> part(3);
  REQUIRE(read_values(*version, 2, part));
  CHECK(part == std::vector<float>{3, 4, 0});
  CHECK(check_digest(*version, layout));

  const auto code = [&](const Layout& other) {
    return open_version(files, "/models", record, other).error().code();
  };
  CHECK(code(Layout::make({{"w", {2, 2}}, {"c", {3}}}).value()) == Errc::corrupt);
  auto file = files.open("/models/" + record.file, OpenMode::update).value();
  const float other = 6;
  REQUIRE(file->write_at(record.bytes - sizeof(float), std::as_bytes(std::span(&other, 1))));
  CHECK(check_digest(*version, layout).error().code() == Errc::corrupt);
  REQUIRE(file->truncate(record.bytes - 1));
  CHECK(code(layout) == Errc::corrupt);
}

TEST_CASE("a run begins with the model's tensors of a file and ignores a strategy's tensors") {
  WeightsFile plain({{"head.weight", {3}}, {"body", {2, 2}}});
  const auto weights = plain.read("fedadam").value();
  CHECK(weights.values == std::vector<float>{3, 4, 5, 6, 0, 1, 2});
  CHECK(weights.unused.empty());

  // A checkpoint of a run with SCAFFOLD, for a run without and with it.
  WeightsFile scaffold({{"body", {2, 2}},
                        {"head.weight", {3}},
                        {"control.body", {2, 2}},
                        {"control.head.weight", {3}}});
  for (const char* const strategy : {"fedavg", "scaffold"}) {
    const auto begun = scaffold.read(strategy).value();
    CHECK(begun.values == std::vector<float>{0, 1, 2, 3, 4, 5, 6});
    CHECK(begun.unused == std::vector<std::string>{"control.body", "control.head.weight"});
  }
}

TEST_CASE("personal tensors in the file are ignored") {
  const char* const strategy = "fedavg:personal=head.*";
  WeightsFile whole({{"body", {2, 2}}, {"head.weight", {3}}});
  const auto weights = whole.read(strategy).value();
  CHECK(weights.values == std::vector<float>{0, 1, 2, 3});
  CHECK(weights.unused == std::vector<std::string>{"head.weight"});

  // A checkpoint without the personal tensors is for a run with the same personal tensors only.
  WeightsFile shared({{"body", {2, 2}}});
  CHECK(shared.read(strategy).value().values == std::vector<float>{0, 1, 2, 3});
  const auto refused = shared.read("fedavg");
  REQUIRE(refused.has_error());
  CHECK(refused.error().message().find("head.weight is missing") != std::string::npos);
  CHECK(refused.error().message().find(WeightsFile::path) != std::string::npos);
}

TEST_CASE("a tensor that the model does not have is refused, and the error names it") {
  WeightsFile file({{"body", {2, 2}}, {"head.weight", {3}}, {"tail", {1}}, {"control.tail", {1}}});
  const auto refused = file.read("fedavg");
  REQUIRE(refused.has_error());
  CHECK(refused.error().code() == Errc::invalid_input);
  CHECK(refused.error().message().find(
            "tail is not in the model; control.tail is not in the model") != std::string::npos);
}

}  // namespace
}  // namespace fl::test
