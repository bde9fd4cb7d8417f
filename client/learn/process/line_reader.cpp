// SPDX-License-Identifier: Apache-2.0
#include "client/learn/process/line_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl {

Result<std::optional<std::string>> LineReader::next(std::size_t bytes_max) {
  const auto end = received_.find('\n', searched_);
  if (std::min(end, received_.size()) > bytes_max)
    return Error(Errc::too_large, fmt::format("sent a line of more than {} bytes", bytes_max));
  if (end == received_.npos) {
    searched_ = received_.size();
    return std::optional<std::string>();
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  searched_ = 0;
  return std::optional(std::move(line));
}

}  // namespace fl
