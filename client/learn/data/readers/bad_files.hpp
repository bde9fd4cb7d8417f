// SPDX-License-Identifier: Apache-2.0
// BadFiles: the files of a folder that a reader can't use. The reader goes on behind each, so that
// one start tells all of them. One thread at a time.
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <filesystem>
#include <vector>

namespace fl {

inline constexpr std::uint64_t logged_bad_files_max = 100;

class BadFiles {
 public:
  /// `is_skipping`: --skip-bad-files.
  explicit BadFiles(bool is_skipping) : is_skipping_(is_skipping) {}

  [[nodiscard]] bool is_skipping() const { return is_skipping_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }
  /// The error names the file.
  void add(Error error);
  /// Call behind the last one of `files` files in a folder. The log says what is wrong with each
  /// bad file, up to logged_bad_files_max. Without --skip-bad-files they are an error, which has
  /// the code and the text of the first one's and says how many there are.
  [[nodiscard]] Result<void> finish(const std::filesystem::path& folder, std::uint64_t files) const;

 private:
  bool is_skipping_;
  std::uint64_t count_ = 0;
  std::vector<Error> first_;  // The errors of the first ones.
};

}  // namespace fl
