// SPDX-License-Identifier: Apache-2.0
#include "client/site/rendezvous_store.hpp"

#include "client/learn/process/json_line.hpp"
#include "client/site/site_messages.hpp"
#include "shared/base/limits.hpp"

#include <optional>
#include <utility>

namespace fl::site {

using nlohmann::json;

std::vector<RendezvousStore::Reply> RendezvousStore::use(Asker asker, const std::string& type,
                                                         const json& message) {
  const std::string key = member_text(message, "key");
  const std::uint64_t id = member_number(message, "id");
  const auto found = values_.find(key);
  const bool is_there = found != values_.end();
  std::vector<Reply> replies;
  json answer{{"type", "value"}, {"id", id}};
  if (type == "set") {
    set(key, member_text(message, "value"), replies);
    return replies;
  }
  if (type == "add") {
    // An answer without a sum says that there is none.
    const auto before = is_there ? counter_of(found->second) : std::optional<std::int64_t>(0);
    const auto amount = member_integer(message, "amount");
    std::int64_t sum = 0;
    if (before && amount && !__builtin_add_overflow(*before, *amount, &sum)) {
      set(key, counter_text(sum), replies);
      answer["sum"] = sum;
    }
  } else if (type == "get" && is_there) {
    answer["value"] = found->second;
  } else if (type == "get" && member_number(message, "wait") != 0) {
    waiters_.emplace(key, Waiter{asker, id});
    return replies;
  } else if (type == "delete") {
    answer["is_there"] = values_.erase(key) > 0;
  }
  replies.push_back({asker, std::move(answer)});
  return replies;
}

void RendezvousStore::set(const std::string& key, const std::string& value,
                          std::vector<Reply>& replies) {
  if (values_.size() >= limits::rank_keys_max) return;
  values_[key] = value;
  const auto [first, last] = waiters_.equal_range(key);
  for (auto waiter = first; waiter != last; ++waiter) {
    json told{{"type", "value"}, {"id", waiter->second.id}, {"value", value}};
    replies.push_back({waiter->second.asker, std::move(told)});
  }
  waiters_.erase(first, last);
}

void RendezvousStore::forget(Asker asker) {
  std::erase_if(waiters_, [&](const auto& waiter) { return waiter.second.asker == asker; });
}

void RendezvousStore::clear() {
  values_.clear();
  waiters_.clear();
}

}  // namespace fl::site
