// SPDX-License-Identifier: Apache-2.0
// ScratchFolder: a new folder with a name that nobody can foretell, which only this user may open.
// It is removed with what is in it when the object goes. In a folder that others may write to, too,
// nothing that they have put there is used or followed. Any thread, one at a time.
#pragma once

#include "shared/base/error.hpp"

#include <filesystem>
#include <string_view>
#include <utility>

namespace fl {

class ScratchFolder {
 public:
  /// Makes PARENT/NAME-XXXXXX; an empty parent is the folder for temporary files (TMPDIR, else
  /// /tmp). Errors: not_found (there is no such parent), io.
  [[nodiscard]] static Result<ScratchFolder> make(std::string_view name,
                                                  std::filesystem::path parent = {});
  ~ScratchFolder();
  ScratchFolder(ScratchFolder&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  explicit ScratchFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

}  // namespace fl
