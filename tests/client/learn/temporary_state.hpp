// SPDX-License-Identifier: Apache-2.0
// A client's state folder for tests that start programs in it.
#pragma once

#include "shared/base/log.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace fl::test {

/// An empty state folder that is removed at the end.
struct State {
  State() {
    set_log_level(LogLevel::error);  // The programs print much.
    std::string text = (std::filesystem::temp_directory_path() / "fl-process-XXXXXX").string();
    REQUIRE(mkdtemp(text.data()) != nullptr);
    path = text;
  }
  ~State() { std::filesystem::remove_all(path); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  /// How often scripted_trainer.py was started.
  [[nodiscard]] int starts() const {
    std::ifstream file(path / "starts");
    int lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }
  std::filesystem::path path;
};

}  // namespace fl::test
