// SPDX-License-Identifier: Apache-2.0
#include "client/site/rendezvous_store.hpp"

#include "client/learn/process/json_line.hpp"
#include "client/site/site_messages.hpp"
#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <optional>
#include <string_view>
#include <utility>

namespace fl::site {

using nlohmann::json;

namespace {

/// Says why a rank's request is refused, in words that continue a sentence about the rank.
Error over_limit(std::string_view what, std::size_t limit) {
  return {Errc::too_large,
          fmt::format("it asks the site's store to keep {}; the limit is {}", what, limit)};
}

}  // namespace

Result<void> RendezvousStore::use(Asker asker, const std::string& type, const json& message,
                                  const Send& send) {
  const std::string key = member_text(message, "key");
  if (key.size() > limits::rank_key_bytes_max)
    return over_limit(fmt::format("a key of {} bytes", key.size()), limits::rank_key_bytes_max);
  const std::uint64_t id = member_number(message, "id");
  const auto found = values_.find(key);
  const bool is_there = found != values_.end();
  json answer{{"type", "value"}, {"id", id}};
  if (type == "set") return set(key, member_text(message, "value"), send);
  if (type == "add") {
    // An answer without a sum says that there is none.
    const auto before = is_there ? counter_of(found->second) : std::optional<std::int64_t>(0);
    const auto amount = member_integer(message, "amount");
    std::int64_t sum = 0;
    if (before && amount && !__builtin_add_overflow(*before, *amount, &sum)) {
      FL_CHECK(set(key, counter_text(sum), send));
      answer["sum"] = sum;
    }
  } else if (type == "get" && is_there) {
    answer["value"] = found->second;
  } else if (type == "get" && member_number(message, "wait") != 0) {
    return wait(key, {asker, id});
  } else if (type == "delete") {
    answer["is_there"] = remove(key);
  }
  send(asker, answer);
  return {};
}

Result<void> RendezvousStore::set(const std::string& key, const std::string& value,
                                  const Send& send) {
  if (value.size() > limits::rank_value_bytes_max)
    return over_limit(fmt::format("a value of {} bytes", value.size()),
                      limits::rank_value_bytes_max);
  const auto found = values_.find(key);
  const bool is_there = found != values_.end();
  if (!is_there && values_.size() >= limits::rank_keys_max)
    return over_limit(fmt::format("{} keys", values_.size() + 1), limits::rank_keys_max);
  const std::size_t before = is_there ? key.size() + found->second.size() : 0;
  const std::size_t after = bytes_ - before + key.size() + value.size();
  if (after > bytes_max_) return over_limit(fmt::format("{} bytes", after), bytes_max_);
  bytes_ = after;
  values_[key] = value;
  const auto [first, last] = waiters_.equal_range(key);
  for (auto waiter = first; waiter != last; ++waiter) {
    const auto [asker, id] = waiter->second;
    if (--waits_[asker] == 0) waits_.erase(asker);
    send(asker, {{"type", "value"}, {"id", id}, {"value", value}});
  }
  waiters_.erase(first, last);
  return {};
}

Result<void> RendezvousStore::wait(const std::string& key, const Waiter& waiter) {
  std::size_t& waits = waits_[waiter.asker];
  if (waits >= limits::rank_waits_max)
    return over_limit(fmt::format("{} waits for keys", waits + 1), limits::rank_waits_max);
  ++waits;
  waiters_.emplace(key, waiter);
  return {};
}

/// Returns whether the key was there.
bool RendezvousStore::remove(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= key.size() + found->second.size();
  values_.erase(found);
  return true;
}

void RendezvousStore::forget(Asker asker) {
  std::erase_if(waiters_, [&](const auto& waiter) { return waiter.second.asker == asker; });
  waits_.erase(asker);
}

void RendezvousStore::clear() {
  values_.clear();
  bytes_ = 0;
  waiters_.clear();
  waits_.clear();
}

}  // namespace fl::site
