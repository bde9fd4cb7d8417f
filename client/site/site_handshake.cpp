// SPDX-License-Identifier: Apache-2.0
#include "client/site/site_handshake.hpp"

#include "client/learn/process/json_line.hpp"
#include "client/site/site_messages.hpp"
#include "shared/base/io/text_of_bytes.hpp"
#include "shared/base/limits.hpp"
#include "shared/identity/crypto.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace fl::site {

namespace {

using nlohmann::json;

constexpr std::size_t random_digits = 64;
constexpr const char* refused = "refused";  // The member of the agent's answer to a wrong proof.

Result<std::string> random_text() {
  std::array<std::byte, random_digits / 2> bytes{};
  FL_CHECK(fill_random(bytes));
  return to_hex(bytes);
}

std::string proof_of(std::string_view secret, std::string_view who, std::string_view agent,
                     std::string_view rank) {
  const std::string text = fmt::format("tributary site {} {} {}", who, agent, rank);
  const Sha256 code = hmac_sha256(bytes_of(secret), bytes_of(std::string_view(text)));
  return to_hex(std::as_bytes(std::span(code)));
}

Error no_site() { return {Errc::unauthenticated, "the other end is no part of a Tributary site"}; }

Result<void> send(SocketLine& line, const json& message, TimePoint until) {
  if (send_json(line, message, until)) return {};
  return Error(Errc::unavailable, "the connection has ended");
}

Result<json> receive(SocketLine& line, TimePoint until) {
  auto message = receive_json(line, until - Clock::now(), limits::rank_greeting_bytes_max);
  if (!message && message.error().code() == Errc::invalid_input) return no_site();
  if (!message) return message.error();
  if (!*message) return Error(Errc::deadline, "no answer in time");
  return std::move(**message);
}

/// Checks that the members `names` are texts of random_digits characters.
Result<void> check_texts(const json& message, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (member_text(message, name).size() != random_digits) return no_site();
  }
  return {};
}

Result<void> check_proof(const json& message, const std::string& wanted) {
  const auto& told = message["proof"].get_ref<const std::string&>();
  if (equal_in_constant_time(bytes_of(std::string_view(told)), bytes_of(std::string_view(wanted))))
    return {};
  return Error(Errc::unauthenticated, "the other end has another site secret (--site-secret-file)");
}

}  // namespace

Result<std::string> make_site_secret() { return random_text(); }

Result<RankGreeting> RankGreeting::begin(std::string secret, int size) {
  FL_TRY(std::string number, random_text());
  return RankGreeting(std::move(secret), size, std::move(number));
}

json RankGreeting::challenge() const { return {{"agent", number_}}; }

Result<void> RankGreeting::check(const json& message, json& answer) const {
  FL_CHECK(check_texts(message, {"rank", "proof"}));
  const auto& other = message["rank"].get_ref<const std::string&>();
  if (auto checked = check_proof(message, proof_of(secret_, "rank", number_, other)); !checked) {
    answer = {{refused, true}};
    return checked;
  }
  answer = {{"proof", proof_of(secret_, "agent", number_, other)}};
  return {};
}

Result<std::optional<SiteMember>> RankGreeting::hear(const json& message, json& answer) {
  if (!has_proof_) {
    FL_CHECK(check(message, answer));
    has_proof_ = true;
    return std::optional<SiteMember>();
  }
  auto member = parse_rank_hello(message, size_);
  if (!member) {
    answer = rank_refusal(member.error().message());
    return member.error();
  }
  return std::optional(std::move(*member));
}

Result<void> greet_agent(SocketLine& line, std::string_view secret, TimePoint until) {
  FL_TRY(const json said, receive(line, until));
  FL_CHECK(check_texts(said, {"agent"}));
  FL_TRY(const std::string mine, random_text());
  const auto& other = said["agent"].get_ref<const std::string&>();
  FL_CHECK(send(line, {{"rank", mine}, {"proof", proof_of(secret, "rank", other, mine)}}, until));
  FL_TRY(const json told, receive(line, until));
  if (told.contains(refused))
    return Error(Errc::unauthenticated,
                 "the agent refused this rank: is its site secret (--site-secret-file) the same?");
  FL_CHECK(check_texts(told, {"proof"}));
  return check_proof(told, proof_of(secret, "agent", other, mine));
}

}  // namespace fl::site
