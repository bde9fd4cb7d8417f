// SPDX-License-Identifier: Apache-2.0
// Cuts bytes that arrive in pieces into lines. Not thread-safe.
#pragma once

#include "shared/base/error.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace fl {

class LineReader {
 public:
  /// Adds bytes that have arrived.
  void add(std::string_view bytes) { received_ += bytes; }
  /// The next line without its end; nothing if none is complete. Errors: too_large (the line has
  /// more than `bytes_max`); the message continues a sentence about who sent it.
  [[nodiscard]] Result<std::optional<std::string>> next(std::size_t bytes_max);
  /// Bytes that were added and are in no line that next() has returned.
  [[nodiscard]] std::size_t size() const { return received_.size(); }

 private:
  std::string received_;
  std::size_t searched_ = 0;  // The first bytes of `received_`, which hold no end of a line.
};

}  // namespace fl
