// SPDX-License-Identifier: Apache-2.0
// The clients that have said Hello to a run and are not in it: they get ready, or wait for another
// run. One that waits connects again and again, so it is known for a while only. On the engine's
// strand.
#pragma once

#include "server/host/hello_facts.hpp"
#include "server/round/status.hpp"
#include "shared/base/async/clock.hpp"

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace fl::server {

struct Newcomer {
  WaitsFor waits_for = WaitsFor::its_data;
  HelloFacts said;
};

class Newcomers {
 public:
  /// A client has said Hello. One that has declined this run still waits for another.
  void hear(const std::string& client, Newcomer newcomer);
  /// A newcomer can't take part in this run.
  void decline(const std::string& client);
  /// The client is in the run now, or may not take part.
  void forget(const std::string& client) { heard_.erase(client); }
  /// Null: the client is none, or has not said Hello for limits::newcomer_max (while it may get
  /// ready: limits::ready_max).
  [[nodiscard]] const Newcomer* find(const std::string& client) const;
  [[nodiscard]] std::size_t count() const;
  /// The newcomers that find() would return, with their clients' names.
  [[nodiscard]] std::vector<std::pair<std::string, Newcomer>> all() const;

 private:
  struct Heard {
    Newcomer newcomer;
    TimePoint until{};
  };
  std::map<std::string, Heard> heard_;  // Members only, so there are no more than these.
};

}  // namespace fl::server
