// SPDX-License-Identifier: Apache-2.0
#include "server/round/masked_survivors.hpp"

#include <fmt/format.h>

namespace fl::server {

void MaskedSurvivors::hold(const std::vector<std::string>& names) {
  FL_ASSERT(!are_held());
  for (const std::string& client : names) {
    Task* const task = tasks_.task_of(client);
    if (task != nullptr && task->is_open()) held_.emplace_back(*task);
  }
}

void MaskedSurvivors::reset() {
  FL_ASSERT(!are_held());
  left_.clear();
  liars_.clear();
}

void MaskedSurvivors::note_leaving(const std::string& client, std::string_view why) {
  if (!left_.insert(client).second) return;
  control_.report_of(
      client, EventLevel::warning,
      fmt::format("{} does not open the masked sum that its update is in: {}", client, why));
  control_.changed.notify();
}

void MaskedSurvivors::note_liars(const std::vector<std::string>& names) {
  for (const std::string& liar : names) {
    if (liars_.insert(liar).second)
      control_.report_of(liar, EventLevel::warning,
                         fmt::format("{} has revealed a wrong share", liar));
  }
}

bool MaskedSurvivors::can_open(const Attempt& attempt) const {
  std::set<std::string> gone = left_;
  for (const auto& expelled : roster_.expelled()) gone.insert(expelled.first);
  return attempt.can_open_without(gone);
}

}  // namespace fl::server
