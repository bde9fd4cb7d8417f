// SPDX-License-Identifier: Apache-2.0
// An attempt of a masked round in memory: its members, and an honest server that asks them.
#pragma once

#include "client/secure/seat.hpp"
#include "server/secure/unlocking.hpp"
#include "shared/secure/cohort.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace fl::testing {

using client::InboxItem;
using client::Seat;
using secure::Cohort;
using secure::Public;
using secure::Secret;
using server::Unlocking;
using Words = std::vector<std::uint64_t>;
using Indices = std::vector<std::uint32_t>;

inline Secret secret_from(std::string_view text) {
  return Secret(secure::digest_of({bytes_of(text)}));
}

/// A member, with what it has on its disk.
struct Person {
  explicit Person(const std::string& called, std::uint64_t attempt = 1)
      : name(called),
        site(secret_from("site of " + called)),
        seed(secret_from(fmt::format("seed {} of {}", attempt, called))) {}

  [[nodiscard]] secure::AttemptSecrets secrets() const { return secure::AttemptSecrets(seed); }
  [[nodiscard]] secure::Member listed(const Public& context) const {
    return {name, secure::signing_key(site), secrets().keys(context, name, site)};
  }

  std::string name;
  Secret site;
  Secret seed;
};

inline const Public& some_context() {
  static const Public context = secure::digest_of({bytes_of("a version and all settings")});
  return context;
}

inline std::vector<Person> people(std::size_t count, std::uint64_t attempt = 1) {
  std::vector<Person> all;
  for (std::size_t i = 0; i < count; ++i) all.emplace_back(fmt::format("site-{:03}", i), attempt);
  return all;
}

inline Cohort cohort_of(const std::vector<Person>& all, const Public& context = some_context()) {
  Cohort cohort{context, {}};
  for (const Person& person : all) cohort.members.push_back(person.listed(context));
  return cohort;
}

/// The list of all these people.
inline client::FindSiteKey list_of(const std::vector<Person>& all) {
  std::map<std::string, Public, std::less<>> keys;
  for (const Person& person : all) keys.emplace(person.name, secure::signing_key(person.site));
  return [keys = std::move(keys)](std::string_view name) -> std::optional<Public> {
    const auto found = keys.find(name);
    return found == keys.end() ? std::nullopt : std::optional(found->second);
  };
}

inline Indices first_indices(std::size_t count) {
  Indices all;
  for (std::uint32_t i = 0; i < count; ++i) all.push_back(i);
  return all;
}

/// The seats of all people, with the shares of all.
struct Table {
  explicit Table(std::vector<Person> everybody, const Public& context = some_context())
      : all(std::move(everybody)), cohort(cohort_of(all, context)) {
    for (const Person& person : all)
      seats.push_back(Seat::take(cohort, person.name, person.secrets(), 3, list_of(all)).value());
    for (const Seat& seat : seats) sealed.push_back(seat.sealed_shares().value());
  }

  /// What the server has for a member, of those that have shared.
  [[nodiscard]] std::vector<InboxItem> inbox(std::uint32_t to, const Indices& sharers) const {
    std::vector<InboxItem> items;
    for (const std::uint32_t from : sharers) {
      for (const auto& share : sealed[from]) {
        if (share.to == to) items.push_back({from, share.bytes});
      }
    }
    return items;
  }
  void deal(const Indices& sharers) {
    for (const std::uint32_t to : sharers)
      seats[to].read_inbox(sharers, inbox(to, sharers)).value();
  }
  [[nodiscard]] std::vector<secure::Consent> consents(const Indices& signers,
                                                      const Indices& survivors) const {
    std::vector<secure::Consent> all_consents;
    for (const std::uint32_t i : signers)
      all_consents.push_back(seats[i].consent(survivors, all[i].site).value());
    return all_consents;
  }

  std::vector<Person> all;
  Cohort cohort;
  std::vector<Seat> seats;
  std::vector<std::vector<client::SealedShares>> sealed;
};

inline Words masked(const Seat& seat, Words words) {
  seat.masks().value().apply(0, words);
  return words;
}

inline void add_to(Words& sum, const Words& words) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += words[i];
}

/// The sum without its masks.
inline Words unmasked(Words sum, const std::vector<Unlocking::Removal>& removals) {
  for (const auto& [key, way] : removals) secure::MaskStream(key).apply(way, 0, sum);
  return sum;
}

}  // namespace fl::testing
