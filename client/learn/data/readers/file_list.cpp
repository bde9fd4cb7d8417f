// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/readers/file_list.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl {

std::string folder_of(const ListedFile& file) {
  const std::size_t slash = file.name.rfind('/');
  return slash == std::string::npos ? "." : file.name.substr(0, slash);
}

Result<std::vector<ListedFile>> list_files(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::vector<ListedFile> files;
  std::error_code failed;
  fs::recursive_directory_iterator entry(folder, failed);
  for (; !failed && entry != fs::recursive_directory_iterator(); entry.increment(failed)) {
    const bool is_hidden = entry->path().filename().string().starts_with('.');
    if (is_hidden) entry.disable_recursion_pending();
    std::error_code lost;  // A link to nothing is no regular file.
    if (is_hidden || !entry->is_regular_file(lost)) continue;
    files.push_back(
        {.path = entry->path(), .name = entry->path().lexically_relative(folder).generic_string()});
    if (files.size() > listed_files_max) {
      return Error(Errc::too_large,
                   fmt::format("{}: more than {} files", folder.string(), listed_files_max));
    }
  }
  if (failed) {
    return Error(Errc::io,
                 fmt::format("read the folder {}: {}", folder.string(), failed.message()));
  }
  std::ranges::sort(files, {}, &ListedFile::name);
  return files;
}

}  // namespace fl
