// SPDX-License-Identifier: Apache-2.0
// The files of the dashboard (server/admin/web), which are a part of the program. The table is
// written by deploy/cmake/embed_files.cmake. Any thread.
#pragma once

#include <span>
#include <string_view>

namespace fl {

struct WebFile {
  std::string_view path;  // In the address: "/app.js".
  std::string_view type;  // With the character set.
  std::string_view tag;   // Of these bytes and no others: the ETag, with its quotes.
  std::string_view bytes;
};

[[nodiscard]] std::span<const WebFile> web_files();

/// Null: there is none. "/" is "/index.html".
[[nodiscard]] const WebFile* find_web_file(std::string_view path);

}  // namespace fl
