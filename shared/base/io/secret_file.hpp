// SPDX-License-Identifier: Apache-2.0
// Secrets in files: those that a person has put there (a token, a passphrase), and those that a
// program gives out. Any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <filesystem>
#include <string>
#include <string_view>

namespace fl {

/// The file's text without white space at its ends. Logs a warning if other users of this machine
/// may read the file. Errors: those of Files::read_all() with limits::secret_file_bytes_max, and
/// `not_found` for a file without text.
[[nodiscard]] Result<std::string> read_secret_file(Files& files, const std::filesystem::path& path);

/// Errors: conflict, if there is a file of that name, or a link, or a folder.
[[nodiscard]] Result<void> expect_no_file(const std::filesystem::path& path);
/// Writes a line into a new file that only this user may read. Errors: those of expect_no_file()
/// and of Files.
[[nodiscard]] Result<void> write_secret_file(Files& files, const std::filesystem::path& path,
                                             std::string_view text);

/// Prints a line to standard output. If that is a file which other users may read, standard error
/// says so, and what to do; `instead` is a flag that writes such a file better, or "".
void print_secret(std::string_view text, std::string_view instead);

}  // namespace fl
