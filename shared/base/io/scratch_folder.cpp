// SPDX-License-Identifier: Apache-2.0
#include "shared/base/io/scratch_folder.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <system_error>

namespace fl {

Result<ScratchFolder> ScratchFolder::make(std::string_view name, std::filesystem::path parent) {
  if (parent.empty()) {
    std::error_code failure;
    parent = std::filesystem::temp_directory_path(failure);
    if (failure) {
      return Error(Errc::not_found,
                   "there is no folder for temporary files: let TMPDIR name one that this user may "
                   "write to");
    }
  }
  std::string path = (parent / fmt::format("{}-XXXXXX", name)).string();
  if (::mkdtemp(path.data()) == nullptr) return errno_error("make folder " + path);
  return ScratchFolder(std::move(path));
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace fl
