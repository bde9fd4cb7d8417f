// SPDX-License-Identifier: Apache-2.0
// Fuzzes the messages of masked rounds, on both ends. The first byte is the step that an attempt of
// four stands at, the second whose message it is; the rest is a wire::Header.
#include "server/secure/attempt.hpp"
#include "shared/secure/messages.hpp"
#include "tests/secure/attempt_world.hpp"

#include <array>

using namespace fl;
using namespace fl::testing;

namespace {

using server::Attempt;

constexpr std::uint32_t count = 4;

/// An attempt, at each of its steps with the first half of the answers.
struct Steps {
  Steps() : table(people(count)) {
    auto members = std::make_shared<secure::MemberList>();
    members->smallest_cohort = secure::cohort_min;
    for (const Person& person : table.all)
      members->members.push_back({person.name, secure::signing_key(person.site)});
    list = std::move(members);
    Attempt attempt(1, some_context(), list);
    table.deal(first_indices(count));
    std::set<std::string> here;
    for (const Person& person : table.all) here.insert(person.name);
    const auto step = [&](const auto& answer) {
      for (std::uint32_t i = 0; i < count; ++i) {
        if (i == count / 2) all.push_back(attempt);
        attempt.apply(table.all[i].name, answer(i)).value();
      }
      if (attempt.stage() < Attempt::Stage::consents) {
        const auto decision = attempt.decide(secure::cohort_min, here).value();
        attempt.apply("", decision).value();
      }
    };
    step([&](std::uint32_t i) { return keys(i); });
    step([&](std::uint32_t i) { return shares(i); });
    step([&](std::uint32_t) { return words(); });
    step([&](std::uint32_t i) { return consent(i); });
    step([&](std::uint32_t i) { return reveal(i); });
    all.push_back(attempt);
  }

  [[nodiscard]] wire::Header keys(std::uint32_t i) const {
    wire::Header header;
    secure::write_keys(table.all[i].listed(some_context()).keys, *header.mutable_secure_keys());
    return header;
  }
  [[nodiscard]] wire::Header shares(std::uint32_t i) const {
    wire::Header header;
    for (const auto& share : table.sealed[i])
      header.mutable_secure_shares()->add_sealed(secure::raw(share.bytes));
    return header;
  }
  static wire::Header words() {
    wire::Header header;
    header.mutable_begin()->set_bytes(8);
    return header;
  }
  [[nodiscard]] wire::Header consent(std::uint32_t i) const {
    wire::Header header;
    const auto consents = table.consents({i}, first_indices(count));
    header.mutable_secure_consent()->set_signature(secure::raw(consents.front().signature));
    return header;
  }
  [[nodiscard]] wire::Header reveal(std::uint32_t i) const {
    const Indices four = first_indices(count);
    wire::Header header;
    secure::write_reveal(table.seats[i].reveal(four, table.consents(four, four)).value(), i, four,
                         *header.mutable_secure_reveal());
    return header;
  }

  Table table;
  std::shared_ptr<const secure::MemberList> list;
  std::vector<Attempt> all;
};

/// The server: what it takes it can apply, and an attempt never goes back.
void tell_server(const Steps& steps, std::size_t step, std::size_t who,
                 const wire::Header& message) {
  Attempt attempt = steps.all[step % steps.all.size()];
  const std::string name = who % 5 < count ? steps.table.all[who % 5].name : "a stranger";
  const auto stage = attempt.stage();
  const auto is_new = attempt.check(name, message);
  if (!is_new) {
    FL_ASSERT(is_new.error().code() == Errc::invalid_input ||
              is_new.error().code() == Errc::protocol);
    return;
  }
  FL_ASSERT(attempt.apply(name, message));
  FL_ASSERT(attempt.stage() >= stage);
  const auto again = attempt.check(name, message);
  FL_ASSERT(!again || !*again);
  for (const Person& person : steps.table.all) static_cast<void>(attempt.message_for(person.name));
  if (attempt.stage() == Attempt::Stage::opened) {
    Unlocking unlocking = attempt.unlocking();
    static_cast<void>(unlocking.removals());
  }
}

/// A member: signs and reveals nothing for a list that it is not in.
void tell_member(const Steps& steps, std::size_t who, const wire::Header& message) {
  const std::uint32_t own = who % count;
  const Person& person = steps.table.all[own];
  Seat seat = steps.table.seats[own];
  if (message.has_secure_cohort()) {
    auto cohort = secure::read_cohort(message.secure_cohort(), some_context(), *steps.list);
    if (!cohort) return;
    const auto taken = Seat::take(std::move(*cohort), person.name, person.secrets(),
                                  secure::cohort_min, list_of(steps.table.all));
    if (taken) static_cast<void>(taken->sealed_shares());
  } else if (message.has_secure_inbox()) {
    const wire::SecureInbox& inbox = message.secure_inbox();
    std::vector<InboxItem> items;
    for (int i = 0; i < inbox.sealed_size(); ++i) {
      const Bytes bytes = bytes_of(std::string_view(inbox.sealed(i)));
      items.push_back({static_cast<std::uint32_t>(i < static_cast<int>(own) ? i : i + 1),
                       {bytes.begin(), bytes.end()}});
    }
    if (seat.read_inbox(secure::read_indices(inbox.sharers()), items))
      static_cast<void>(seat.masks());
  } else if (message.has_secure_survivors()) {
    const auto survivors = secure::read_indices(message.secure_survivors().survivors());
    const bool signs = seat.consent(survivors, person.site).has_value();
    FL_ASSERT(!signs || std::ranges::binary_search(survivors, own));
  } else if (message.has_secure_ask()) {
    const auto consents = secure::read_consents(message.secure_ask());
    if (consents) static_cast<void>(seat.reveal(first_indices(count), *consents));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto log_handler = google::protobuf::SetLogHandler(nullptr);
  static_cast<void>(log_handler);
  static const Steps steps;
  wire::Header message;
  if (size < 2 || !message.ParseFromArray(data + 2, static_cast<int>(size - 2))) return 0;
  tell_server(steps, data[0], data[1], message);
  tell_member(steps, data[1], message);
  return 0;
}
