// SPDX-License-Identifier: Apache-2.0
// The client's identity files: joining and renewing survive a crash after every change to the disk,
// and files that don't belong together are refused by name.
#include "tests/identity/fixture.hpp"

namespace fl {
namespace {

using namespace fl::test;

void check_pair(const ClientIdentity& identity) {
  CHECK(fits(*parse_certificate(identity.certificate_pem()).value(),
             *parse_key(identity.key_pem()).value()));
}

std::string issue(const Authority& authority, std::string_view name, const std::string& request) {
  return authority.issue_client(name, request, some_time).value().pem;
}

TEST_CASE("a client loads the identity with which it joined") {
  const TemporaryFolder temp;
  const Authority authority = new_authority(temp / "ca");
  const ClientIdentity joined = new_identity(authority, temp / "me", "alice", some_time);
  const ClientIdentity loaded = ClientIdentity::load(posix_files(), temp / "me").value();
  CHECK(loaded.name() == "alice");
  CHECK(loaded.server() == ServerAddress{"localhost", 8443});
  CHECK(loaded.certificate_pem() == joined.certificate_pem());
  CHECK(loaded.key_pem() == joined.key_pem());
  CHECK(loaded.ca_pem() == authority.certificate_pem());
  check_pair(loaded);
  const auto mode = std::filesystem::status(temp / "me/key.pem").permissions();
  CHECK(static_cast<unsigned>(mode) == 0600);
  CHECK(!std::filesystem::exists(temp / "me/key.pem.new"));

  CHECK(!loaded.renew_due(some_time + 59 * day_s));
  CHECK(loaded.renew_due(some_time + 61 * day_s));
  CHECK(loaded.life().not_after > some_time + 89 * day_s);
  CHECK(loaded.life().not_after < some_time + 91 * day_s);
}

TEST_CASE("loading a folder without an identity gives not_found") {
  const TemporaryFolder temp;
  CHECK(!ClientIdentity::is_present(posix_files(), temp / "me"));
  CHECK(ClientIdentity::load(posix_files(), temp / "me").error().code() == Errc::not_found);
}

TEST_CASE("damaged or foreign files are refused by name") {
  const TemporaryFolder temp;
  const Authority authority = new_authority(temp / "ca");
  const Authority other = new_authority(temp / "other-ca");
  new_identity(authority, temp / "me", "alice");
  const auto refused_with = [&](std::string_view file, std::string_view text) {
    const Path path = temp / "me" / file;
    const std::string good = read_text(path);
    write_text(path, text);
    const auto loaded = ClientIdentity::load(posix_files(), temp / "me");
    REQUIRE(!loaded);
    CHECK(contains(loaded.error().message(), path.string()));
    write_text(path, good);
    CHECK(ClientIdentity::load(posix_files(), temp / "me"));
  };
  for (const char* file : {"key.pem", "cert.pem", "ca.pem", "identity.json"}) {
    const std::string good = read_text(temp / "me" / file);
    refused_with(file, "");
    refused_with(file, good.substr(0, good.size() / 2));
  }
  refused_with("key.pem", to_pem(*make_key().value()).value());
  refused_with("ca.pem", other.certificate_pem());
  refused_with("identity.json", R"({"server": 7})");
  refused_with("identity.json", R"({"server": "no port"})");
}

TEST_CASE(
    "a crash at any point of joining leaves no identity or a whole one, and joining works again") {
  const TemporaryFolder temp;
  const Authority authority = new_authority(temp / "ca");
  int changes = 0;
  for (bool done = false; !done; ++changes) {
    const Path folder = temp / std::to_string(changes);
    CrashingFiles disk(changes);
    const ServerAddress server{"localhost", 1};
    const auto request = ClientIdentity::request_certificate(disk, folder);
    if (request) {
      const std::string certificate = issue(authority, "alice", *request);
      const auto joined = ClientIdentity::finish_joining(disk, folder, server, "1d", certificate,
                                                         authority.certificate_pem());
      done = joined.has_value();
    }
    if (ClientIdentity::is_present(posix_files(), folder)) {
      const auto loaded = ClientIdentity::load(posix_files(), folder);
      REQUIRE(loaded);
      check_pair(*loaded);
    } else {
      check_pair(new_identity(authority, folder, "alice"));
    }
  }
  CHECK(changes > 12);
}

TEST_CASE("a crash at any point of renewing leaves the old or new pair, and renewing works again") {
  const TemporaryFolder temp;
  const Authority authority = new_authority(temp / "ca");
  int changes = 0;
  int old_pairs = 0;
  int new_pairs = 0;
  for (bool done = false; !done; ++changes) {
    const Path folder = temp / std::to_string(changes);
    ClientIdentity identity = new_identity(authority, folder, "alice");
    const std::string old_pem = identity.certificate_pem();

    CrashingFiles disk(changes);
    std::string new_pem;
    if (const auto request = ClientIdentity::request_certificate(disk, folder)) {
      new_pem = issue(authority, "alice", *request);
      done = identity.finish_renewing(disk, new_pem).has_value();
    }
    ClientIdentity loaded = ClientIdentity::load(posix_files(), folder).value();
    check_pair(loaded);
    const bool is_new = loaded.certificate_pem() == new_pem;
    REQUIRE((is_new || loaded.certificate_pem() == old_pem));
    ++(is_new ? new_pairs : old_pairs);
    if (done) CHECK(is_new);

    const auto again = ClientIdentity::request_certificate(posix_files(), folder);
    REQUIRE(again);
    REQUIRE(loaded.finish_renewing(posix_files(), issue(authority, "alice", *again)));
    check_pair(loaded);
  }
  CHECK(old_pairs > 3);
  CHECK(new_pairs > 2);
}

TEST_CASE("a crash at any point of taking a new authority leaves a pair that is trusted") {
  const TemporaryFolder temp;
  Authority authority = new_authority(temp / "ca");
  const std::string old_ca = authority.trusted_pem();
  std::vector<Path> members;
  for (int i = 0; i < 20; ++i) {
    members.push_back(temp / std::to_string(i));
    new_identity(authority, members.back(), "alice");
  }
  REQUIRE(authority.begin_rotation(posix_files(), temp / "ca", Clock::unix_seconds(), ""));
  bool done = false;
  for (int changes = 0; !done; ++changes) {
    ClientIdentity identity = ClientIdentity::load(posix_files(), members.at(changes)).value();
    CrashingFiles disk(changes);
    if (const auto request = ClientIdentity::request_certificate(disk, members.at(changes))) {
      const std::string certificate = issue(authority, "alice", *request);
      done = identity.finish_renewing(disk, certificate, authority.trusted_pem()).has_value();
    }
    const auto loaded = ClientIdentity::load(posix_files(), members.at(changes));
    REQUIRE(loaded);
    check_pair(*loaded);
    CHECK((loaded->ca_pem() == old_ca || loaded->ca_pem() == authority.trusted_pem()));
    if (done) CHECK(loaded->ca_pem() == authority.trusted_pem());
  }
}

TEST_CASE("a certificate of an authority that does not come with it is refused") {
  const TemporaryFolder temp;
  Authority authority = new_authority(temp / "ca");
  ClientIdentity identity = new_identity(authority, temp / "me", "alice");
  REQUIRE(authority.begin_rotation(posix_files(), temp / "ca", Clock::unix_seconds(), ""));
  const auto request = ClientIdentity::request_certificate(posix_files(), temp / "me").value();
  const std::string certificate = issue(authority, "alice", request);
  CHECK(!identity.finish_renewing(posix_files(), certificate));
  CHECK(!identity.finish_renewing(posix_files(), certificate, "nonsense"));
  CHECK(identity.finish_renewing(posix_files(), certificate, authority.trusted_pem()));
}

TEST_CASE("an unanswered request is repeated with the same key, and the old pair stays in use") {
  const TemporaryFolder temp;
  const Authority authority = new_authority(temp / "ca");
  ClientIdentity identity = new_identity(authority, temp / "me", "alice");
  const std::string first = ClientIdentity::request_certificate(posix_files(), temp / "me").value();
  const std::string key = read_text(temp / "me/key.pem.new");
  const std::string second =
      ClientIdentity::request_certificate(posix_files(), temp / "me").value();
  CHECK(read_text(temp / "me/key.pem.new") == key);
  CHECK(key != identity.key_pem());
  CHECK(ClientIdentity::load(posix_files(), temp / "me")->key_pem() == identity.key_pem());
  // The answer to either request is accepted.
  REQUIRE(identity.finish_renewing(posix_files(), issue(authority, "alice", first)));
  CHECK(identity.key_pem() == key);
  check_pair(identity);
}

TEST_CASE("a wrong answer changes nothing") {
  const TemporaryFolder temp;
  const Authority authority = new_authority(temp / "ca");
  const Authority other = new_authority(temp / "other-ca");
  ClientIdentity identity = new_identity(authority, temp / "me", "alice");
  const std::string before = identity.certificate_pem();
  const std::string request =
      ClientIdentity::request_certificate(posix_files(), temp / "me").value();

  const auto refused = [&](const std::string& certificate) {
    const auto renewed = identity.finish_renewing(posix_files(), certificate);
    REQUIRE(!renewed);
    CHECK(read_text(temp / "me/cert.pem") == before);
    CHECK(identity.certificate_pem() == before);
    return renewed.error();
  };
  CHECK(contains(refused(issue(authority, "bob", request)).message(), "for another client"));
  CHECK(contains(refused(issue(other, "alice", request)).message(), "has not signed"));
  CHECK(contains(refused(issue(authority, "alice", new_request_pem())).message(),
                 "for another key than this client's"));
  CHECK(refused("nonsense").code() == Errc::corrupt);
}

}  // namespace
}  // namespace fl
