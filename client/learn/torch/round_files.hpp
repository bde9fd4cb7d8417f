// SPDX-License-Identifier: Apache-2.0
// RoundFiles: something that a client keeps on its disk from round to round, one file for each of
// the last two rounds, because the newest one may be trained again after a crash. One thread at a
// time.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace fl {

class RoundFiles {
 public:
  /// The files are FOLDER/NAME-RUN-ROUND.ENDING. `folder` must exist.
  RoundFiles(Files& files, std::filesystem::path folder, std::string name, std::string ending)
      : files_(files),
        folder_(std::move(folder)),
        prefix_(std::move(name) + "-"),
        suffix_("." + std::move(ending)) {}

  /// The file of this round.
  [[nodiscard]] std::filesystem::path path_of(const std::string& run_key,
                                              std::uint32_t round) const;
  /// The newest round before `round` in this run that has a file. Errors: those of the disk.
  [[nodiscard]] Result<std::optional<std::uint32_t>> round_before(const std::string& run_key,
                                                                  std::uint32_t round) const;
  /// The file of that round.
  [[nodiscard]] Result<std::optional<std::filesystem::path>> before(const std::string& run_key,
                                                                    std::uint32_t round) const;
  /// Call when the file of `round` is written: removes files of other runs and of rounds long ago.
  [[nodiscard]] Result<void> remove_old(const std::string& run_key, std::uint32_t round) const;

 private:
  struct Name {
    std::string text;
    std::string run_key;
    std::uint32_t round = 0;
  };
  [[nodiscard]] Result<std::vector<Name>> ours() const;

  Files& files_;
  std::filesystem::path folder_;
  std::string prefix_;
  std::string suffix_;
};

}  // namespace fl
