// SPDX-License-Identifier: Apache-2.0
// RendezvousStore: the keys and values through which the ranks of a site find each other. c10d's
// groups meet at it: each rank puts its address under a key, and waits for the others' keys. The
// hub keeps it; the ranks' end is RankLink. Not thread-safe.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/json.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>

namespace fl::site {

class RendezvousStore {
 public:
  using Asker = std::uint64_t;  // The number of a connection.
  /// Sends a message to a connection. Called for one message after the other, so that the sender's
  /// limit holds before the next one is made.
  using Send = std::function<void(Asker to, const nlohmann::json& message)>;

  /// `bytes_max` bounds the keys and values together.
  explicit RendezvousStore(std::size_t bytes_max) : bytes_max_(bytes_max) {}

  /// Does what a rank asks for by a message of the type "set", "get", "add" or "delete". Sends
  /// values to those who waited for them, and then the asker's answer. A "get" that waits has its
  /// answer when the key is set. Errors: too_large for a request over a limit (`bytes_max`, those
  /// of limits.hpp); then nothing has changed and nothing is sent.
  [[nodiscard]] Result<void> use(Asker asker, const std::string& type,
                                 const nlohmann::json& message, const Send& send);
  /// Forgets what this connection waits for.
  void forget(Asker asker);
  /// Forgets all keys, and who waits.
  void clear();

 private:
  struct Waiter {
    Asker asker = 0;
    std::uint64_t id = 0;  // The request's number.
  };
  [[nodiscard]] Result<void> set(const std::string& key, const std::string& value,
                                 const Send& send);
  [[nodiscard]] Result<void> wait(const std::string& key, const Waiter& waiter);
  [[nodiscard]] bool remove(const std::string& key);

  const std::size_t bytes_max_;
  std::size_t bytes_ = 0;  // Those of the keys and values.
  std::map<std::string, std::string> values_;
  std::multimap<std::string, Waiter> waiters_;  // By key; of one key in the order of their coming.
  std::unordered_map<Asker, std::size_t> waits_;  // How many waiters each asker has.
};

}  // namespace fl::site
