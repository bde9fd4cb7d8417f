// SPDX-License-Identifier: Apache-2.0
#include "client/learn/initial_file.hpp"

#include "shared/base/io/file.hpp"
#include "shared/params/safetensors.hpp"

#include <vector>

namespace fl {

Result<void> write_initial_weights(const Trainer& trainer, std::uint64_t seed,
                                   const std::filesystem::path& path) {
  FL_TRY(const auto weights, trainer.initial_weights(seed));
  const std::vector<ElementType> fp32(trainer.layout().tensors().size(), ElementType::f32);
  Files& files = posix_files();
  const std::filesystem::path temporary = path.string() + ".tmp";
  FL_TRY(const auto file, files.open(temporary, OpenMode::fresh));
  FL_CHECK(write_safetensors(*file, trainer.layout(), weights, fp32));
  FL_CHECK(file->sync());
  FL_CHECK(files.rename(temporary, path));
  return files.sync_folder(std::filesystem::absolute(path).parent_path());
}

}  // namespace fl
