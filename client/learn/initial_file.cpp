// SPDX-License-Identifier: Apache-2.0
#include "client/learn/initial_file.hpp"

#include "shared/base/io/file.hpp"
#include "shared/params/safetensors.hpp"

namespace fl {

Result<void> write_initial_weights(const Trainer& trainer, std::uint64_t seed,
                                   const std::filesystem::path& path) {
  FL_TRY(const auto weights, trainer.initial_weights(seed));
  return replace_safetensors(posix_files(), path, trainer.layout(), weights);
}

}  // namespace fl
