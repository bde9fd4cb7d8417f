// The model's versions on disk, STATE/checkpoints. A version is one safetensors file: what a user
// opens with PyTorch is, from its data offset on, also what clients download, so the server holds
// no model in memory. Beside it may lie the coded step that led to it (round-000012.delta), for
// clients that have the version before.
#pragma once

#include "server/history/store.hpp"
#include "shared/algorithm/strategy.hpp"
#include "shared/base/io/file.hpp"
#include "shared/params/layout.hpp"

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace fl {

/// An immutable, published version. Shared by whoever still sends it, also after its file is
/// removed.
struct ModelVersion {
  CheckpointRecord record;
  std::shared_ptr<File> file;
  std::uint64_t data_offset = 0;
  std::shared_ptr<File> delta;  // May be null.
};

/// Writes version by version, value by value: memory does not grow with the model.
class CheckpointWriter {
 public:
  /// `facts` go into the file's metadata map, beside round and digest.
  static Result<CheckpointWriter> create(Files& files, const std::filesystem::path& folder,
                                         Round version, const Layout& layout,
                                         std::vector<std::pair<std::string, std::string>> facts);
  /// The next values in layout order, all finite (FL_ASSERT on too many).
  [[nodiscard]] Result<void> append(std::span<const float> values);
  /// After the last value: header, sync, rename into place, folder sync. The version is durable.
  [[nodiscard]] Result<CheckpointRecord> finish();

 private:
  CheckpointWriter(Files& files, std::filesystem::path folder, const Layout& layout)
      : files_(&files), folder_(std::move(folder)), layout_(&layout) {}
  [[nodiscard]] std::string header(const Digest& digest) const;

  Files* files_;
  std::filesystem::path folder_;
  const Layout* layout_;
  std::vector<std::pair<std::string, std::string>> facts_;
  std::unique_ptr<File> file_;
  CheckpointRecord record_;
  std::uint64_t data_offset_ = 0;
  std::uint64_t written_ = 0;
  Writeback writeback_;
  float value_max_ = 0;
  Hasher hasher_;
};

struct InitialWeights {
  std::vector<float> values;        // Of the model's tensors that are not personal, in their order.
  std::vector<std::string> unused;  // Tensors of the file.
};
/// From a user's safetensors file, which may be a checkpoint of another run: what travelled there
/// with the model (SHARED.TENSOR) is not used, nor what is personal here. Errors name the flag, the
/// file and, where a value is not finite, its tensor[index].
[[nodiscard]] Result<InitialWeights> read_initial_weights(Files& files,
                                                          const std::filesystem::path& path,
                                                          const Layout& model,
                                                          const Strategy& strategy);

/// Opens a recorded version and checks that header and layout are what they should be (`corrupt`).
[[nodiscard]] Result<std::shared_ptr<const ModelVersion>> open_version(
    Files& files, const std::filesystem::path& folder, const CheckpointRecord& record,
    const Layout& layout);

/// Reads all values: `corrupt` unless they have the recorded digest.
[[nodiscard]] Result<void> check_digest(const ModelVersion& version, const Layout& layout);

/// Reads values [first, first + out.size()) of a version.
[[nodiscard]] Result<void> read_values(const ModelVersion& version, std::uint64_t first,
                                       std::span<float> out);

/// "round-000012.safetensors", "round-000012.delta".
[[nodiscard]] std::string checkpoint_name(Round version);
[[nodiscard]] std::string delta_name(Round version);

}  // namespace fl
