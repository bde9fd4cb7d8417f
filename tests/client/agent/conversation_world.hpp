// SPDX-License-Identifier: Apache-2.0
// A conversation with a server whose answers are scripted, and a certificate that may be due for
// renewal.
#pragma once

#include "client/agent/conversation.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/scripted_link.hpp"
#include "tests/wire/simulation.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {

using namespace fl::client;

inline const std::string run_key = "0123456789abcdef";

/// A certificate that is due for renewal, or not.
struct Keeper final : client::IdentityKeeper {
  Result<std::optional<std::string>> renewal_request(const std::string& authorities) override {
    authorities_seen.push_back(authorities);
    if (failure) return *failure;
    if (!is_due) return std::optional<std::string>();
    return std::optional<std::string>("a request");
  }
  Result<void> take_renewal(const wire::Renewed& renewed) override {
    if (failure) return *failure;
    taken.push_back(renewed.certificate_pem());
    return {};
  }

  bool is_due = false;
  std::optional<Error> failure;  // Of both calls.
  std::vector<std::string> authorities_seen;
  std::vector<std::string> taken;
};

struct ConversationWorld {
  Simulation simulation;
  Keeper keeper;
  client::Conversation conversation;
  std::shared_ptr<ScriptedLink> link;

  explicit ConversationWorld(bool has_keeper = true)
      : conversation(has_keeper ? &keeper : nullptr) {}

  /// Begins a connection on which the server will answer this.
  Result<void> begin(std::vector<wire::Header> answers = {}) {
    link = std::make_shared<ScriptedLink>(simulation.io.get_executor());
    link->answers.assign(answers.begin(), answers.end());
    return simulation.result_of(conversation.begin(link));
  }
  Result<wire::Welcome> hello(wire::Hello hello = {}) {
    return simulation.result_of(conversation.hello(std::move(hello)));
  }
  Result<void> ready() { return simulation.result_of(conversation.ready({})); }
  Error decline(const std::string& key, const Error& why, const Layout* others = nullptr) {
    return simulation.result_of(conversation.decline(key, why, others));
  }
  /// Hears on a connection that no run is on.
  void hear_that_no_run_is_on();
};

inline wire::Header bye(wire::Bye::Cause cause, std::string reason = "the reason") {
  wire::Header header;
  header.mutable_bye()->set_cause(cause);
  header.mutable_bye()->set_reason(std::move(reason));
  return header;
}

inline wire::Header welcome(const std::string& authorities = "") {
  wire::Header header;
  header.mutable_welcome()->set_run_key(run_key);
  header.mutable_welcome()->set_authorities(authorities);
  return header;
}

inline wire::Header renewed(const std::string& certificate = "the certificate") {
  wire::Header header;
  header.mutable_renewed()->set_certificate_pem(certificate);
  return header;
}

inline void ConversationWorld::hear_that_no_run_is_on() {
  REQUIRE(begin({bye(wire::Bye::FINISHED)}));
  REQUIRE(!hello());
}

}  // namespace fl::test
