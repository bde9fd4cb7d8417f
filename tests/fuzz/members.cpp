// SPDX-License-Identifier: Apache-2.0
// Fuzzes member lists: what is read can be one, stays the same when its lines are written again,
// and neither counts as signed without signatures nor follows itself.
#include "shared/secure/cohort.hpp"
#include "shared/secure/member_list.hpp"

#include <fmt/format.h>

#include <set>

using namespace fl;
using namespace fl::secure;

namespace {

/// The lines of a list, without signatures.
std::string text_of(const MemberList& list) {
  std::string text = fmt::format("tributary-members 1\nepoch {}\n", list.epoch);
  if (list.before) text += fmt::format("before {}\n", key_text(*list.before));
  text += fmt::format("smallest-cohort {}\nneeds {}\n", list.smallest_cohort, list.needs);
  for (const auto& signer : list.signers)
    text += fmt::format("signer {} {}\n", signer.name, key_text(signer.key));
  for (const auto& member : list.members)
    text += fmt::format("member {} {}\n", member.name, key_text(member.key));
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto list = parse_member_list({reinterpret_cast<const char*>(data), size});
  if (!list) {
    FL_ASSERT(list.error().code() == Errc::invalid_input);
    return 0;
  }
  FL_ASSERT(list->members.size() >= cohort_min && list->smallest_cohort >= cohort_min);
  FL_ASSERT(list->smallest_cohort <= list->members.size());
  FL_ASSERT(list->needs >= 1 && list->needs <= list->signers.size());
  std::set<Public> keys;
  for (const auto& signer : list->signers) FL_ASSERT(keys.insert(signer.key).second);
  for (const auto& member : list->members) {
    FL_ASSERT(keys.insert(member.key).second);
    FL_ASSERT(list->find(member.name) == member.key);
  }
  const auto again = parse_member_list(text_of(*list));
  FL_ASSERT(again && again->digest() == list->digest());
  FL_ASSERT(!check_signed(*again) && !check_follows(*list, *list));
  FL_ASSERT(!check_signed(*list) || list->signatures.size() >= list->needs);
  return 0;
}
