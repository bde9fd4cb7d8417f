// SPDX-License-Identifier: Apache-2.0
// Reads a secret that a person has put into a file: a token, a passphrase. Any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <filesystem>
#include <string>

namespace fl {

/// The file's text without white space at its ends. Logs a warning if other users of this machine
/// may read the file. Errors: those of Files::read_all() with limits::secret_file_bytes_max, and
/// `not_found` for a file without text.
[[nodiscard]] Result<std::string> read_secret_file(Files& files, const std::filesystem::path& path);

}  // namespace fl
