// SPDX-License-Identifier: Apache-2.0
#include "server/secure/entrants.hpp"

#include "shared/secure/messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace fl::server {

namespace {

Error bad_keys(std::string text) { return {Errc::invalid_input, std::move(text)}; }

}  // namespace

Entrants::Entrants(secure::Public context, std::shared_ptr<const secure::MemberList> list)
    : context_(context), list_(std::move(list)) {}

Result<bool> Entrants::check(const std::string& client, const wire::SecureKeys& message) const {
  const auto site_key = list_->find(client);
  if (!site_key) return bad_keys(fmt::format("'{}' is not in the member list", client));
  FL_TRY(const secure::MemberKeys keys, secure::read_keys(message));
  if (const auto before = entrants_.find(client); before != entrants_.end()) {
    if (before->second.keys == keys || before->second.task > message.task()) return false;
    // A member that is asked again, with another task, has begun anew.
    if (before->second.task == message.task())
      return bad_keys("it has sent other keys for this task before");
  }
  if (message.cohort_min() > secure::cohort_max) {
    return bad_keys(fmt::format("it takes part with {} members at least, and {} are the most",
                                message.cohort_min(), secure::cohort_max));
  }
  FL_CHECK(secure::check_keys(context_, {client, *site_key, keys}));
  // What check_cohort() would refuse: one member could keep all others from a cohort.
  std::set<secure::Public> taken;
  for (const auto& listed : list_->members) taken.insert(listed.key);
  for (const auto& [name, other] : entrants_) {
    if (name != client)
      taken.insert({other.keys.mask_key, other.keys.share_key, other.keys.self_digest});
  }
  for (const auto& key : {keys.mask_key, keys.share_key, keys.self_digest}) {
    if (!taken.insert(key).second)
      return bad_keys("it sends a key twice, or one that is another's");
  }
  for (const auto& key : {keys.mask_key, keys.share_key})
    FL_CHECK(secure::agree(secure::Secret(context_), key));
  return true;
}

Result<void> Entrants::take(const std::string& client, const wire::SecureKeys& message) {
  FL_TRY(const secure::MemberKeys keys, secure::read_keys(message));
  entrants_[client] = {message.task(), keys, message.cohort_min()};
  return {};
}

bool Entrants::has_keys(const std::string& client, std::int64_t task) const {
  const auto found = entrants_.find(client);
  return found != entrants_.end() && found->second.task == task;
}

Result<secure::Cohort> Entrants::cohort(std::size_t least,
                                        const std::set<std::string>& here) const {
  std::vector<std::pair<std::string, const Entrant*>> chosen;
  for (const auto& [name, entrant] : entrants_) {
    if (here.contains(name) && chosen.size() < secure::cohort_max)
      chosen.emplace_back(name, &entrant);
  }
  const std::size_t trained = chosen.size();
  for (;;) {
    const auto most = std::ranges::max_element(
        chosen, {}, [](const auto& member) { return member.second->cohort_min; });
    if (most == chosen.end() || most->second->cohort_min <= chosen.size()) break;
    chosen.erase(most);
  }
  if (chosen.size() < least && chosen.size() < trained) {
    return Error(Errc::unavailable,
                 fmt::format("{} members have trained, and {} of them take part with more only "
                             "(--min-cohort)",
                             trained, trained - chosen.size()));
  }
  if (chosen.size() < least) {
    return Error(Errc::unavailable,
                 fmt::format("{} members have trained, and {} are needed", chosen.size(), least));
  }
  secure::Cohort cohort{.context = context_, .members = {}};
  for (const auto& [name, entrant] : chosen)
    cohort.members.push_back({name, *list_->find(name), entrant->keys});
  FL_CHECK(secure::check_cohort(cohort));
  return cohort;
}

std::size_t Entrants::least_of(const secure::Cohort& cohort) const {
  std::size_t least = 0;
  for (const secure::Member& member : cohort.members)
    least = std::max<std::size_t>(least, entrants_.at(member.name).cohort_min);
  return least;
}

}  // namespace fl::server
