// SPDX-License-Identifier: Apache-2.0
// A version of the model as a file for other programs. tests/process/records_test.py reads such
// files with Python's zipfile and with numpy.
#include "server/versions/export_model.hpp"
#include "shared/params/safetensors.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

namespace fl::test {

using namespace fl::server;
namespace {

struct Exports {
  MemFiles files;
  CheckpointRecord record;

  explicit Exports(const std::vector<TensorSpec>& specs) {
    const Layout layout = Layout::make(specs).value();
    auto writer = CheckpointWriter::create(files, "/models", 3, layout, {{"run", "mine"}}).value();
    std::vector<float> values(layout.elements());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) / 2;
    writer.append(values).value();
    record = writer.finish().value();
    files.make_folder("/out").value();
  }
  Result<ExportedModel> write(ModelFormat format) {
    return export_model(files, "/models", record, format, "/out/model");
  }
};

const std::vector<TensorSpec> with_control = {
    {"body", {2, 2}}, {"head", {3}}, {"control.body", {2, 2}}, {"control.head", {3}}};

TEST_CASE("an exported safetensors file has the model's tensors and not those of the method") {
  Exports exports(with_control);
  const ExportedModel model = exports.write(ModelFormat::safetensors).value();
  CHECK(model.tensors == 2);
  CHECK(model.elements == 7);
  const auto file = exports.files.open("/out/model", OpenMode::read).value();
  const auto info = read_safetensors_header(*file).value();
  REQUIRE(info.layout.tensors().size() == 2);
  std::vector<float> values(7);
  read_safetensors(*file, info.layout, values).value();
  CHECK(values == std::vector<float>{0, 0.5, 1, 1.5, 2, 2.5, 3});
  CHECK(model.digest == Digest::of(std::as_bytes(std::span(values))));
  std::map<std::string, std::string> metadata(info.metadata.begin(), info.metadata.end());
  CHECK(metadata["run"] == "mine");
  CHECK(metadata["round"] == "3");
  CHECK(metadata["digest"] == model.digest.hex());
}

TEST_CASE("without vectors of a method the exported values have the recorded digest") {
  Exports exports({{"w", {300'000}}, {"scalar", {}}});
  for (const ModelFormat format : {ModelFormat::safetensors, ModelFormat::npz})
    CHECK(exports.write(format).value().digest == exports.record.digest);
}

TEST_CASE("a damaged checkpoint is not exported, and what had the name stays") {
  Exports exports(with_control);
  REQUIRE(exports.files.write_atomically("/out/model", bytes_of(std::string_view("old"))));
  {
    const auto file =
        exports.files.open("/models/" + exports.record.file, OpenMode::update).value();
    const float other = 77;
    // The last value, which is of the method's vector: it counts too.
    REQUIRE(
        file->write_at(exports.record.bytes - sizeof other, std::as_bytes(std::span(&other, 1))));
  }
  const auto refused = exports.write(ModelFormat::npz);
  CHECK(refused.error().code() == Errc::corrupt);
  CHECK(exports.files.read_all("/out/model").value() == "old");
  CHECK(exports.files.list("/out").value() == std::vector<std::string>{"model"});
  REQUIRE(exports.files.remove("/models/" + exports.record.file));
  CHECK(exports.write(ModelFormat::npz).error().code() == Errc::not_found);
}

TEST_CASE("a full disk leaves no half of an export") {
  Exports exports(with_control);
  exports.files.space_limit(exports.record.bytes + 100);
  const auto refused = exports.write(ModelFormat::npz);
  CHECK(refused.error().code() == Errc::no_space);
  CHECK(exports.files.list("/out").value().empty());
}

}  // namespace
}  // namespace fl::test
