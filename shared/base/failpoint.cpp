// SPDX-License-Identifier: Apache-2.0
#include "shared/base/failpoint.hpp"

#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>

namespace fl {

namespace {

struct Armed {
  std::string name;
  std::atomic<int> passages_left;
};

Armed* armed() {
  static Armed* const it = []() -> Armed* {
    const char* const spec = std::getenv("FL_FAILPOINT");
    if (spec == nullptr) return nullptr;
    const std::string_view text(spec);
    const auto colon = text.find(':');
    int count = 1;
    if (colon != std::string_view::npos)
      std::from_chars(text.data() + colon + 1, text.data() + text.size(), count);
    return new Armed{std::string(text.substr(0, colon)), count};
  }();
  return it;
}

}  // namespace

void failpoint(std::string_view name) {
  Armed* const it = armed();
  if (it != nullptr && it->name == name && --it->passages_left == 0) std::raise(SIGKILL);
}

}  // namespace fl
