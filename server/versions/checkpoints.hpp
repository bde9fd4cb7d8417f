// SPDX-License-Identifier: Apache-2.0
// The model's versions on disk, in STATE/checkpoints. A version is one safetensors file. Users open
// it with PyTorch; clients download the bytes behind its header, so the server holds no model in
// memory. The coded step that led to a version may lie beside it (round-000012.delta), for clients
// that have the version before.
#pragma once

#include "server/history/records.hpp"
#include "server/versions/file_on_demand.hpp"
#include "shared/algorithm/strategy.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"
#include "shared/params/layout.hpp"
#include "shared/params/model_part.hpp"

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace fl::server {

/// A published version; it never changes. Its files are opened when they are needed. A reader with
/// an open file may go on after the version is removed.
struct ModelVersion {
  ModelVersion(Files& files, const std::filesystem::path& folder, CheckpointRecord made)
      : record(std::move(made)),
        file(files, folder / record.file),
        delta(files, folder / record.delta_file) {}

  CheckpointRecord record;
  ModelPart part = ModelPart::whole;  // Neither the record nor the file's name says another.
  FileOnDemand file;
  std::uint64_t data_offset = 0;
  FileOnDemand delta;  // Only if the record has a coded step.
};

/// Writes one version, part by part: memory does not grow with the model.
class CheckpointWriter {
 public:
  /// `facts` go into the file's metadata, with the round and the digest.
  static Result<CheckpointWriter> create(Files& files, const std::filesystem::path& folder,
                                         Version version, const Layout& layout,
                                         std::vector<std::pair<std::string, std::string>> facts);
  /// Writes the next values in layout order. All must be finite; too many are an FL_ASSERT.
  [[nodiscard]] Result<void> append(std::span<const float> values);
  /// After the last value: writes the header, syncs, renames the file into place and syncs the
  /// folder. When it returns, the version is durable.
  [[nodiscard]] Result<CheckpointRecord> finish();

 private:
  CheckpointWriter(Files& files, std::filesystem::path folder, const Layout& layout)
      : files_(&files), folder_(std::move(folder)), layout_(&layout) {}
  void put_digest(const Digest& digest);

  Files* files_;
  std::filesystem::path folder_;
  const Layout* layout_;
  std::string header_;
  std::unique_ptr<File> file_;
  CheckpointRecord record_;
  std::uint64_t data_offset_ = 0;
  std::uint64_t written_ = 0;
  Writeback writeback_;
  Hasher hasher_;
};

struct InitialWeights {
  std::vector<float>
      values;  // Values of the model's tensors in their order, without the personal ones.
  std::vector<std::string> unused;  // Tensors of the file that are not used.
};
/// Reads a user's safetensors file, which may be a checkpoint of another run. Shared vectors of
/// that run (SHARED.TENSOR) are not used, and neither are tensors that are personal in this one.
/// Errors name the flag, the file and, if a value is not finite, its tensor[index].
[[nodiscard]] Result<InitialWeights> read_initial_weights(Files& files,
                                                          const std::filesystem::path& path,
                                                          const Layout& model,
                                                          const Strategy& strategy);

/// Looks at the files of a recorded version. `corrupt`: its header or its layout is not that of the
/// run.
[[nodiscard]] Result<std::shared_ptr<const ModelVersion>> open_version(
    Files& files, const std::filesystem::path& folder, const CheckpointRecord& record,
    const Layout& layout);

/// Opens a version that this process has just written: only its size is looked at.
[[nodiscard]] Result<std::shared_ptr<const ModelVersion>> open_written(
    Files& files, const std::filesystem::path& folder, const CheckpointRecord& record,
    const Layout& layout);

/// Reads all values. `corrupt`: they do not have the recorded digest.
[[nodiscard]] Result<void> check_digest(const ModelVersion& version, const Layout& layout);

/// Reads the values [first, first + out.size()) of a version.
[[nodiscard]] Result<void> read_values(const ModelVersion& version, std::uint64_t first,
                                       std::span<float> out);

/// The names of a version's files: "round-000012.safetensors", "round-000012.delta".
[[nodiscard]] std::string checkpoint_name(Version version);
[[nodiscard]] std::string delta_name(Version version);
/// The version in a checkpoint's name; none for any other name.
[[nodiscard]] std::optional<Version> version_of_checkpoint(std::string_view name);
/// The number in a name that begins with "round-": that of all files beside a checkpoint. 0 if
/// there is none, so make the name anew and compare.
[[nodiscard]] Version version_in_name(std::string_view name);

}  // namespace fl::server
