// SPDX-License-Identifier: Apache-2.0
// The server's side of joining: which requests get a certificate, and what the answers say.
#include "tests/identity/fixture.hpp"

#include "shared/base/json.hpp"

namespace fl {
namespace {

using namespace fl::test;

struct World {
  TemporaryFolder temp;
  Authority authority = new_authority(temp / "ca");
  MemoryBook book;
  JoinToken token = make_token({"localhost", 1}, authority.fingerprint()).value();
  EnrolmentRequest request{token.id_hex(),
                           std::string(text_of(std::as_bytes(std::span(token.secret)))), "alice",
                           new_request_pem()};

  World() { book.add(token, "alice", some_time + 3600); }

  Error refusal(double at = some_time) {
    const auto outcome = enroll(authority, book, request, at);
    REQUIRE(!outcome);
    return outcome.error();
  }
};

TEST_CASE("a valid token gives a certificate once") {
  World world;
  const auto response = enroll(world.authority, world.book, world.request, some_time);
  REQUIRE(response);
  const CertificatePtr certificate = parse_certificate(response->certificate).value();
  CHECK(common_name(*certificate) == "alice");
  CHECK(response->name == "alice");
  CHECK(response->ca == world.authority.certificate_pem());
  CHECK(world.book.serials.at("alice") == serial_hex(*certificate));
  CHECK(world.book.tokens.at(world.token.id_hex()).used_at == some_time);

  world.request.csr = new_request_pem();  // With another key.
  const Error again = world.refusal();
  CHECK(again.code() == Errc::conflict);
  CHECK(contains(again.message(), "already used"));
}

TEST_CASE("a client that lost the answer may ask again with the same key until the token expires") {
  World world;
  const auto lost = enroll(world.authority, world.book, world.request, some_time);
  const auto again = enroll(world.authority, world.book, world.request, some_time + 10);
  REQUIRE(again);
  const CertificatePtr first = parse_certificate(lost->certificate).value();
  const CertificatePtr second = parse_certificate(again->certificate).value();
  CHECK(spki_fingerprint(*first).value() == spki_fingerprint(*second).value());
  CHECK(world.book.serials.at("alice") == serial_hex(*second));
  CHECK(contains(world.refusal(some_time + 3601).message(), "expired"));
}

TEST_CASE("a request without a name gets the name of its token") {
  World world;
  world.request.name = "";
  CHECK(enroll(world.authority, world.book, world.request, some_time)->name == "alice");
}

TEST_CASE("an unknown id and a wrong secret give the same error") {
  World world;
  EnrolmentRequest good = world.request;
  world.request.secret[0] = static_cast<char>(world.request.secret[0] ^ 1);
  const Error forged = world.refusal();
  world.request = good;
  world.request.token_id = "0000000000000000";
  const Error unknown = world.refusal();
  CHECK(forged.code() == Errc::unauthenticated);
  CHECK(unknown.code() == forged.code());
  CHECK(unknown.message() == forged.message());
}

TEST_CASE("without the secret, a peer does not learn whether a token is used or expired") {
  World world;
  world.book.tokens.at(world.token.id_hex()).used_at = some_time;
  world.request.secret[0] = static_cast<char>(world.request.secret[0] ^ 1);
  CHECK(contains(world.refusal(some_time + 7200).message(), "does not know"));
}

TEST_CASE("a refused request (expired, wrong or revoked name, bad) leaves the token unused") {
  World world;
  CHECK(contains(world.refusal(some_time + 3601).message(), "expired"));

  world.request.name = "bob";
  CHECK(world.refusal().code() == Errc::unauthenticated);
  CHECK(contains(world.refusal().message(), "for client \"alice\", not for \"bob\""));
  world.request.name = "../bob";
  CHECK(world.refusal().code() == Errc::invalid_input);
  world.request.name = "alice";

  world.book.revoked = "alice";
  CHECK(world.refusal().code() == Errc::unauthenticated);
  CHECK(contains(world.refusal().message(), "revoked"));
  world.book.revoked = "";

  const std::string csr = world.request.csr;
  world.request.csr = "no request";
  CHECK(world.refusal().code() == Errc::invalid_input);
  world.request.csr = csr;

  CHECK(world.book.tokens.at(world.token.id_hex()).used_at == 0);
  CHECK(enroll(world.authority, world.book, world.request, some_time));
}

TEST_CASE("if another request used the token at the same moment, this one is a conflict") {
  World world;
  world.book.lost_race = true;
  CHECK(world.refusal().code() == Errc::conflict);
  CHECK(world.book.serials.empty());
}

TEST_CASE("requests read back from their JSON; errors of broken ones name the field") {
  const World world;
  const std::string body = to_json(world.request);
  const auto parsed = parse_enrolment_request(body);
  REQUIRE(parsed);
  CHECK(parsed->token_id == world.request.token_id);
  CHECK(parsed->secret == world.request.secret);
  CHECK(parsed->name == world.request.name);
  CHECK(parsed->csr == world.request.csr);

  for (std::size_t bytes = 0; bytes < body.size(); ++bytes)
    CHECK_FALSE(parse_enrolment_request(body.substr(0, bytes)).has_value());
  for (const char* field : {"token_id", "secret", "name", "csr"}) {
    for (const nlohmann::json& value : {nlohmann::json(), nlohmann::json(7), nlohmann::json("é")}) {
      if (value == "é" && (*field == 'n' || *field == 'c')) continue;  // enroll() checks these.
      auto object = parse_json(body);
      object[field] = value;
      const auto refused = parse_enrolment_request(json_text(object));
      REQUIRE(!refused);
      CHECK(refused.error().code() == Errc::invalid_input);
      CHECK(contains(refused.error().message(), field));
    }
  }
  CHECK(parse_enrolment_request(std::string(enrolment_bytes_max + 1, ' ')).error().code() ==
        Errc::too_large);
  CHECK(!parse_enrolment_request(std::string(enrolment_bytes_max, '[')));
}

TEST_CASE("answers read back from their JSON; they don't reveal the server's internal errors") {
  const EnrolmentResponse response{"certificate", "ca", "alice"};
  const auto parsed = parse_enrolment_response(200, to_json(response));
  REQUIRE(parsed);
  CHECK(parsed->certificate == "certificate");
  CHECK(parsed->ca == "ca");
  CHECK(parsed->name == "alice");

  const Error used(Errc::conflict, "used, \xff");
  const auto refused = parse_enrolment_response(http_status(used), to_json(used));
  CHECK(refused.error().code() == Errc::unauthenticated);
  CHECK(contains(refused.error().message(), "used, "));

  const Error full(Errc::no_space, "/var/lib/fl: no space");
  CHECK(http_status(full) == 503);
  CHECK(!contains(to_json(full), "/var/lib"));
  CHECK(parse_enrolment_response(503, to_json(full)).error().code() == Errc::unavailable);
  CHECK(parse_enrolment_response(200, "<html>").error().code() == Errc::protocol);
  CHECK(parse_enrolment_response(404, "{}").error().code() == Errc::protocol);
}

}  // namespace
}  // namespace fl
