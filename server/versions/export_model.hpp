// SPDX-License-Identifier: Apache-2.0
// Copies a version of the model out of the checkpoints, for other programs: the model's tensors
// alone, without the vectors that some methods keep beside them (control.TENSOR). Blocking; values
// are copied in pieces.
#pragma once

#include "server/versions/checkpoints.hpp"
#include "shared/params/safetensors.hpp"

#include <filesystem>

namespace fl::server {

enum class ModelFormat { safetensors, npz };

struct ExportedModel {
  std::size_t tensors = 0;
  std::uint64_t elements = 0;
  Digest digest;  // The digest of the written values, in the order of the file.
};

/// Writes `to`, replacing an existing file: after a crash there is either the old file or the new
/// one, complete. A safetensors file has the checkpoint's metadata, and `facts` besides. The values
/// are those that were recorded, or the error is `corrupt` and `to` is as it was.
[[nodiscard]] Result<ExportedModel> export_model(Files& files, const std::filesystem::path& folder,
                                                 const CheckpointRecord& record, ModelFormat format,
                                                 const std::filesystem::path& to,
                                                 const Metadata& facts = {});

}  // namespace fl::server
