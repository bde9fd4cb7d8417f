// SPDX-License-Identifier: Apache-2.0
#include "shared/base/documents.hpp"

#include <fmt/format.h>

#include <optional>
#include <system_error>

namespace fl {

namespace {

namespace fs = std::filesystem;

/// Relative to the programs' folder: in a checkout (build/bin), in the Python wheel
/// (tributary_fl/bin), as `cmake --install` has it (bin), as packages have it (lib/tributary). The
/// last place is for programs of a user's that are made with libfl-client.so.
constexpr const char* places[] = {"../..", "..", "../share/doc/tributary",
                                  "../../share/doc/tributary", "/usr/share/doc/tributary"};

fs::path folder_of_this_program() {
  std::error_code none;
  return fs::read_symlink("/proc/self/exe", none).parent_path();
}

std::optional<fs::path> folder_with(std::string_view page, const fs::path& programs) {
  for (const char* const place : places) {
    const fs::path folder = (programs / place).lexically_normal();
    std::error_code none;
    if (fs::is_regular_file(folder / page, none)) return folder;
  }
  return std::nullopt;
}

}  // namespace

std::string document_path(std::string_view page, const fs::path& programs) {
  const auto folder = folder_with(page, programs);
  if (folder) return (*folder / page).lexically_normal().string();
  return fmt::format("{} in the sources of Tributary", page);
}

std::string document_path(std::string_view page) {
  return document_path(page, folder_of_this_program());
}

std::string documents_footer() {
  const auto folder = folder_with("docs/guide/flags.md", folder_of_this_program());
  if (!folder) return "Pages named docs/... are in the sources of Tributary.";
  return fmt::format("Pages named docs/... are in {}.",
                     folder->has_filename() ? folder->string() : folder->parent_path().string());
}

}  // namespace fl
