// SPDX-License-Identifier: Apache-2.0
// The addresses from which strangers came: whether a member was there lately, and how many
// handshakes that led nowhere (fruitless ones) have begun for them. It is in memory only, so after
// a restart no address is known, and has a bounded number of addresses. On the strand, or under the
// mutex, of whoever accepts.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/base/limits.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>

namespace fl {

/// A number for a machine, or for the network that it may have.
using Address = std::uint64_t;

/// The number of handshakes that may be fruitless at once, and in a second.
struct FruitlessLimit {
  double at_once = 0;
  double per_s = 0;
};

/// Counts the handshakes that were fruitless lately: the count falls with time.
class Fruitless {
 public:
  [[nodiscard]] bool has_room(const FruitlessLimit& limit, TimePoint now);
  void add(double count, TimePoint now);

 private:
  double count_ = 0;
  TimePoint at_{};
};

/// The limit at ports where nothing counts as fruitless.
inline constexpr FruitlessLimit no_fruitless_limit{.at_once = 1e300, .per_s = 1e300};

class AddressBook {
 public:
  struct Limits {
    std::size_t addresses = limits::addresses_remembered_max;
    Duration member_time = limits::member_address_time;
    FruitlessLimit of_address{limits::fruitless_of_address, limits::fruitless_of_address_per_s};
    FruitlessLimit of_unknown{limits::fruitless_of_unknown, limits::fruitless_of_unknown_per_s};
  };

  explicit AddressBook(const Limits& limits) : limits_(limits) {}

  /// Whether a member was at this address within limits::member_address_time.
  [[nodiscard]] bool is_known(Address address, TimePoint now) const;
  /// Whether a handshake may begin: not too many were fruitless from this address, nor from all
  /// unknown ones together.
  [[nodiscard]] bool may_try(Address address, TimePoint now);
  /// A handshake begins. It counts as fruitless until bear_fruit() says otherwise.
  void try_once(Address address, TimePoint now);
  /// A handshake from this address has shown this member, or has made it. For one member only the
  /// newest limits::addresses_of_member_max addresses are known, so that nobody makes many of them
  /// known.
  void bear_fruit(Address address, const std::string& member, TimePoint now);
  [[nodiscard]] std::size_t size() const { return records_.size(); }

 private:
  struct Record {
    Fruitless fruitless;
    TimePoint used{};
    TimePoint known_until{};
    std::string known_by;  // The member that was there last.
  };

  Record& record(Address address, TimePoint now);
  void forget_some(TimePoint now);

  Limits limits_;
  std::unordered_map<Address, Record> records_;
  std::unordered_map<std::string, std::deque<Address>>
      of_member_;  // The addresses of each member, the oldest first.
  Fruitless of_unknown_;
};

}  // namespace fl
