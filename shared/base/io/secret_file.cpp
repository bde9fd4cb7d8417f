// SPDX-License-Identifier: Apache-2.0
#include "shared/base/io/secret_file.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <system_error>

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

Result<void> expect_no_file(const std::filesystem::path& path) {
  std::error_code none;
  if (std::filesystem::symlink_status(path, none).type() == std::filesystem::file_type::not_found)
    return {};
  return Error(Errc::conflict,
               path.string() + " is there already: choose another name, or remove it");
}

Result<void> write_secret_file(Files& files, const std::filesystem::path& path,
                               std::string_view text) {
  FL_CHECK(expect_no_file(path));
  FL_TRY(const auto file, files.open(path, OpenMode::fresh));
  return file->write_at(0, bytes_of(fmt::format("{}\n", text)));
}

void print_secret(std::string_view text, std::string_view instead) {
  fmt::print("{}\n", text);
  struct stat status {};
  const bool is_open_to_others = ::fstat(STDOUT_FILENO, &status) == 0 && S_ISREG(status.st_mode) &&
                                 (status.st_mode & (S_IRGRP | S_IROTH)) != 0;
  if (!is_open_to_others) return;
  fmt::print(
      stderr,
      "warning: this is a secret, and other users may read the file that it is written to (mode "
      "{:o}): 'chmod 600' makes it private, and so does 'umask 077' before the next one{}\n",
      status.st_mode & 07777U, instead.empty() ? "" : fmt::format("; or use {}", instead));
}

}  // namespace fl
