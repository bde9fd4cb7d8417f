// SPDX-License-Identifier: Apache-2.0
// RendezvousStore: the keys and values through which the ranks of a site find each other. c10d's
// groups meet at it: each rank puts its address under a key, and waits for the others' keys. The
// hub keeps it; the ranks' end is RankLink. Not thread-safe.
#pragma once

#include "shared/base/json.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fl::site {

class RendezvousStore {
 public:
  using Asker = std::uint64_t;  // The number of a connection.
  struct Reply {
    Asker to = 0;
    nlohmann::json message;
  };

  /// Does what a rank asks for by a message of the type "set", "get", "add" or "delete". Returns
  /// what to send now: values to those who waited for them, and then the asker's answer. A "get"
  /// that waits has its answer when the key is set.
  [[nodiscard]] std::vector<Reply> use(Asker asker, const std::string& type,
                                       const nlohmann::json& message);
  /// Forgets what this connection waits for.
  void forget(Asker asker);
  /// Forgets all keys, and who waits.
  void clear();

 private:
  struct Waiter {
    Asker asker = 0;
    std::uint64_t id = 0;  // The request's number.
  };
  void set(const std::string& key, const std::string& value, std::vector<Reply>& replies);

  std::map<std::string, std::string> values_;
  std::multimap<std::string, Waiter> waiters_;  // By key; of one key in the order of their coming.
};

}  // namespace fl::site
