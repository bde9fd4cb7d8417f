// SPDX-License-Identifier: Apache-2.0
// The files below a folder. Any thread.
#pragma once

#include "shared/base/error.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace fl {

inline constexpr std::size_t listed_files_max = 1 << 26;

struct ListedFile {
  std::filesystem::path path;
  std::string name;  // The path below the folder.
};

/// The path of the file's folder below the listed one; "." if that is its folder.
[[nodiscard]] std::string folder_of(const ListedFile& file);

/// The regular files in a folder and in the folders in it, in the order of their names' bytes.
/// Files and folders whose names begin with a dot are left out; links to folders are not followed.
/// Errors: io, also for a folder that is missing; too_large, beyond listed_files_max.
[[nodiscard]] Result<std::vector<ListedFile>> list_files(const std::filesystem::path& folder);

}  // namespace fl
