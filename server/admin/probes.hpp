// SPDX-License-Identifier: Apache-2.0
// What an orchestrator asks a server, apart from the pages for people: /livez, whether it must be
// started again, and /readyz, whether clients can use it now. Any thread. It never waits for the
// engine, so it answers when the engine hangs.
#pragma once

#include "server/admin/answer.hpp"
#include "shared/base/async/mutex.hpp"
#include "shared/base/async/pulse.hpp"

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace fl::server {

class Probes {
 public:
  /// The pulse must outlive this object.
  explicit Probes(const Pulse& pulse) : pulse_(pulse) {}

  /// Sets why clients can't use this server now; "" if they can.
  void set_trouble(std::string why);
  /// Answers GET `path` if that is one of the two probes.
  [[nodiscard]] std::optional<PageAnswer> answer(std::string_view path) const;

 private:
  const Pulse& pulse_;
  mutable Mutex mutex_;
  std::string trouble_ FL_GUARDED_BY(mutex_) = "the server is starting";
};

/// Why the history in this folder can't be written; "" if it can. May block.
[[nodiscard]] std::string trouble_with_history(const std::filesystem::path& state);

}  // namespace fl::server
