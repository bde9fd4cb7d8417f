// SPDX-License-Identifier: Apache-2.0
#include "server/admin/web_files.hpp"

namespace fl::server {

const WebFile* find_web_file(std::string_view path) {
  if (path == "/") path = "/index.html";
  for (const WebFile& file : web_files())
    if (file.path == path) return &file;
  return nullptr;
}

}  // namespace fl::server
