// SPDX-License-Identifier: Apache-2.0
#include "shared/net/address_book.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace fl {

bool Fruitless::has_room(const FruitlessLimit& limit, TimePoint now) {
  count_ = std::max(0.0, count_ - limit.per_s * seconds(now - at_));
  at_ = now;
  return count_ + 1 <= limit.at_once;
}

void Fruitless::add(double count, TimePoint now) {
  if (count_ <= 0) at_ = now;
  count_ += count;
}

bool AddressBook::is_known(Address address, TimePoint now) const {
  const auto found = records_.find(address);
  return found != records_.end() && now < found->second.known_until;
}

bool AddressBook::may_try(Address address, TimePoint now) {
  const auto found = records_.find(address);
  if (found != records_.end() && !found->second.fruitless.has_room(limits_.of_address, now))
    return false;
  return is_known(address, now) || of_unknown_.has_room(limits_.of_unknown, now);
}

void AddressBook::try_once(Address address, TimePoint now) {
  if (!is_known(address, now)) of_unknown_.add(1, now);
  record(address, now).fruitless.add(1, now);
}

void AddressBook::bear_fruit(Address address, const std::string& member, TimePoint now) {
  Record& known = record(address, now);
  if (now >= known.known_until) of_unknown_.add(-1, now);
  known.fruitless.add(-1, now);
  known.known_until = now + limits_.member_time;
  known.known_by = member;
  auto& places = of_member_[member];
  std::erase(places, address);
  places.push_back(address);
  if (places.size() <= limits::addresses_of_member_max) return;
  const auto oldest = records_.find(places.front());
  if (oldest != records_.end() && oldest->second.known_by == member)
    oldest->second.known_until = now;
  places.pop_front();
}

AddressBook::Record& AddressBook::record(Address address, TimePoint now) {
  if (records_.size() >= limits_.addresses && !records_.contains(address)) forget_some(now);
  Record& found = records_[address];
  found.used = now;
  return found;
}

/// Forgets half of the addresses: first those where no member was, of these the ones that were used
/// the longest ago.
void AddressBook::forget_some(TimePoint now) {
  using Worth = std::pair<std::pair<bool, TimePoint>, Address>;
  std::vector<Worth> all;
  all.reserve(records_.size());
  for (const auto& [address, record] : records_)
    all.push_back({{now < record.known_until, record.used}, address});
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>((all.size() + 1) / 2);
  std::nth_element(all.begin(), middle, all.end());
  for (auto each = all.begin(); each != middle; ++each) records_.erase(each->second);
}

}  // namespace fl
