// SPDX-License-Identifier: Apache-2.0
// The files of the dashboard (server/admin/web), which are a part of the program. The table is
// written by deploy/cmake/embed_files.cmake. Any thread.
#pragma once

#include <span>
#include <string_view>

namespace fl::server {

struct WebFile {
  std::string_view path;  // The path in the address: "/app.js".
  std::string_view type;  // The media type with the character set.
  std::string_view tag;   // The ETag of these bytes, with its quotes.
  std::string_view bytes;
};

[[nodiscard]] std::span<const WebFile> web_files();

/// Null: there is no such file. "/" is "/index.html".
[[nodiscard]] const WebFile* find_web_file(std::string_view path);

}  // namespace fl::server
