// SPDX-License-Identifier: Apache-2.0
// The server's sources, for tests that hold tables about its texts against them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>

namespace fl::test {

/// The text of a file of the repository.
inline std::string source_text(const std::string& path) {
  std::ifstream file(FL_SOURCE_FOLDER "/" + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The source with literals that go on in the next line joined.
inline std::string with_joined_literals(const std::string& source) {
  std::string joined;
  for (std::size_t at = 0; at < source.size(); ++at) {
    if (source[at] == '"') {
      const auto next = source.find_first_not_of(" \n", at + 1);
      if (next != source.npos && next > at + 1 && source[next] == '"') {
        at = next;
        continue;
      }
    }
    joined += source[at];
  }
  return joined;
}

/// All sources of the server, and of what it says through shared/base, but those of these names.
/// Literals that go on in the next line are joined.
inline std::string server_sources(std::initializer_list<std::string_view> without) {
  std::string all;
  for (const char* folder : {FL_SOURCE_FOLDER "/server", FL_SOURCE_FOLDER "/shared/base"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      const auto ending = entry.path().extension();
      const bool is_source = ending == ".cpp" || ending == ".hpp";
      const std::string name = entry.path().filename().string();
      if (!is_source || std::ranges::find(without, name) != without.end()) continue;
      std::ifstream file(entry.path());
      all.append(std::istreambuf_iterator<char>(file), {});
    }
  }
  return with_joined_literals(all);
}

}  // namespace fl::test
