// SPDX-License-Identifier: Apache-2.0
// The file of an Ed25519 key: a site's key, or that of somebody who signs member lists. One line,
// "tributary-key-1 " and the secret as 64 hexadecimal digits. Blocking.
#pragma once

#include "shared/base/io/file.hpp"
#include "shared/secure/secret.hpp"

#include <filesystem>

namespace fl::secure {

/// Errors: those of read_secret_file(); corrupt, naming the file, for another text.
[[nodiscard]] Result<Secret> read_key_file(Files& files, const std::filesystem::path& path);

/// Draws a key and writes it into a new file that only this user may read, durably. Errors:
/// conflict, if there is a file of that name; those of Files and of Secret::draw().
[[nodiscard]] Result<Secret> make_key_file(Files& files, const std::filesystem::path& path);

}  // namespace fl::secure
