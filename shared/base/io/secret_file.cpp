// SPDX-License-Identifier: Apache-2.0
#include "shared/base/io/secret_file.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <sys/stat.h>

namespace fl {

Result<std::string> read_secret_file(Files& files, const std::filesystem::path& path) {
  FL_TRY(std::string text, files.read_all(path, limits::secret_file_bytes_max));
  constexpr std::string_view space = " \t\r\n";
  const auto begin = text.find_first_not_of(space);
  if (begin == std::string::npos)
    return Error(Errc::not_found, "there is no secret in " + path.string());
  text = text.substr(begin, text.find_last_not_of(space) + 1 - begin);
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && (status.st_mode & S_IROTH) != 0)
    log_warn("other users may read {}: 'chmod 600 {}' makes it private", path.string(),
             path.string());
  return text;
}

}  // namespace fl
