// SPDX-License-Identifier: Apache-2.0
// The authority: its files survive restarts and crashes; damaged files are refused; certificates
// have the right contents, whatever a request asks for.
#include "tests/identity/fixture.hpp"

#include <openssl/pem.h>
#include <openssl/x509v3.h>

namespace fl {
namespace {

using namespace fl::test;

Result<Authority> open(const Path& folder, double at = some_time) {
  return Authority::open_or_create(posix_files(), folder, at);
}

unsigned mode_of(const Path& path) {
  return static_cast<unsigned>(std::filesystem::status(path).permissions());
}

TEST_CASE("an authority is created once and then loaded") {
  const TemporaryFolder temp;
  const auto first = open(temp / "identity");
  REQUIRE(first);
  const auto second = open(temp / "identity", some_time + 1000);
  REQUIRE(second);
  CHECK(second->fingerprint() == first->fingerprint());
  CHECK(second->certificate_pem() == first->certificate_pem());
  CHECK(mode_of(temp / "identity/ca.key") == 0600);
  CHECK(open(temp / "other")->fingerprint() != first->fingerprint());
}

TEST_CASE("after a crash at any point of the first start, the next start completes the folder") {
  int changes = 0;
  for (bool done = false; !done; ++changes) {
    const TemporaryFolder temp;
    CrashingFiles disk(changes);
    const auto first = Authority::open_or_create(disk, temp / "identity", some_time);
    done = first.has_value();
    const auto next = open(temp / "identity");
    REQUIRE(next);
    if (done) CHECK(next->fingerprint() == first->fingerprint());
  }
  CHECK(changes > 5);
}

TEST_CASE("damaged authority files are refused by name and not changed") {
  const TemporaryFolder temp;
  const Path folder = temp / "identity";
  REQUIRE(open(folder));
  const std::string key = read_text(folder / "ca.key");
  const std::string certificate = read_text(folder / "ca.crt");
  const auto refused = [&](std::string_view file) {
    const auto opened = open(folder);
    REQUIRE(!opened);
    CHECK(opened.error().code() == Errc::corrupt);
    CHECK(contains(opened.error().message(), (folder / file).string()));
  };

  for (const std::size_t left : {std::size_t{0}, std::size_t{1}, key.size() / 2, key.size() - 10}) {
    write_text(folder / "ca.key", key.substr(0, left));
    refused("ca.key");
    CHECK(read_text(folder / "ca.key") == key.substr(0, left));
  }
  write_text(folder / "ca.key", to_pem(*make_key().value()).value());
  refused("ca.key");
  std::filesystem::remove(folder / "ca.key");
  refused("ca.crt");
  write_text(folder / "ca.key", key);

  write_text(folder / "ca.crt", certificate.substr(0, certificate.size() / 2));
  refused("ca.crt");
  std::string flipped = certificate;
  flipped[certificate.size() / 2] = flipped[certificate.size() / 2] == 'A' ? 'B' : 'A';
  write_text(folder / "ca.crt", flipped);
  refused("ca.crt");
  write_text(folder / "ca.crt", certificate);
  CHECK(open(folder));
}

TEST_CASE("an expired authority is refused") {
  const TemporaryFolder temp;
  REQUIRE(open(temp / "identity"));
  const auto late = open(temp / "identity", some_time + authority_life_s + 1);
  REQUIRE(!late);
  CHECK(late.error().code() == Errc::unauthenticated);
}

TEST_CASE("a new authority stands beside the old one until that is dropped") {
  const TemporaryFolder temp;
  const Path folder = temp / "identity";
  Authority authority = open(folder).value();
  const Sha256 old = authority.fingerprint();
  CHECK(authority.trusted_pem() == authority.certificate_pem());
  CHECK(authority.finish_rotation(posix_files(), folder).error().code() == Errc::conflict);
  REQUIRE(authority.begin_rotation(posix_files(), folder, some_time, ""));
  CHECK(authority.begin_rotation(posix_files(), folder, some_time, "").error().code() ==
        Errc::conflict);
  CHECK(mode_of(folder / "ca-next.key") == 0600);

  const Authority both = open(folder).value();
  CHECK(both.fingerprint() == old);
  const auto trusted = parse_certificates(both.trusted_pem()).value();
  REQUIRE(trusted.size() == 2);
  CHECK(spki_fingerprint(*trusted[0]).value() == old);
  const auto issued = both.issue_client("a", new_request_pem(), some_time).value();
  const CertificatePtr client = parse_certificate(issued.pem).value();
  CHECK(!is_signed_by(*client, *trusted[0]));
  CHECK(is_signed_by(*client, *trusted[1]));
  const auto server = both.issue_server({"localhost"}, some_time).value();
  CHECK(is_signed_by(*parse_certificate(server.chain_pem).value(), *trusted[0]));
  CHECK(authority_fingerprint(posix_files(), folder).value() == old);

  REQUIRE(authority.finish_rotation(posix_files(), folder));
  const Authority after = open(folder).value();
  CHECK(after.fingerprint() == spki_fingerprint(*trusted[1]).value());
  CHECK(after.trusted_pem() == to_pem(*trusted[1]).value());
  CHECK(!std::filesystem::exists(folder / "ca-next.key"));
}

TEST_CASE("a crash at any point of changing the authority leaves one that works") {
  int changes = 0;
  for (bool done = false; !done; ++changes) {
    const TemporaryFolder temp;
    const Path folder = temp / "identity";
    Authority authority = open(folder).value();
    const Sha256 old = authority.fingerprint();
    CrashingFiles disk(changes);
    const bool begun = authority.begin_rotation(disk, folder, some_time, "").has_value();
    done = begun && authority.finish_rotation(disk, folder).has_value();
    auto next = open(folder);
    REQUIRE(next);
    // The next attempt goes on from there.
    if (next->fingerprint() == old) {
      if (next->trusted_pem() == next->certificate_pem())
        REQUIRE(next->begin_rotation(posix_files(), folder, some_time, ""));
      REQUIRE(next->finish_rotation(posix_files(), folder));
    }
    const auto last = open(folder);
    REQUIRE(last);
    CHECK(last->fingerprint() != old);
  }
  CHECK(changes > 8);
}

TEST_CASE("with a passphrase the authority's keys are encrypted, those of before too") {
  const TemporaryFolder temp;
  const Path folder = temp / "identity";
  const auto with = [&](const std::string& passphrase) {
    return Authority::open_or_create(posix_files(), folder, some_time, passphrase);
  };
  const Sha256 plain = open(folder)->fingerprint();
  auto authority = with("correct horse");
  REQUIRE(authority);
  CHECK(authority->fingerprint() == plain);
  CHECK(is_encrypted_key(read_text(folder / "ca.key")));
  REQUIRE(authority->begin_rotation(posix_files(), folder, some_time, "correct horse"));
  CHECK(is_encrypted_key(read_text(folder / "ca-next.key")));
  CHECK(with("correct horse")->issue_client("a", new_request_pem(), some_time));
  for (const char* wrong : {"", "correct", "correct horse "}) {
    const auto refused = with(wrong);
    REQUIRE(!refused);
    CHECK(refused.error().code() == Errc::unauthenticated);
    CHECK(contains(refused.error().message(), "--ca-passphrase-file"));
  }
}

// Made by version 0.1.0: its path length is 0.
constexpr const char* key_of_0_1 = R"(-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgOwil8quSId8EYCAU
GjU0aRMnDuZjGFVcxR+LgeQAKnehRANCAAQ73FJZaxMIU9cJbHDNAC94TUtisENE
RWNnhqaOHmUVIsMPHyg5z7X5E/tQocvRaP3p5GPQ+9c0AfqoYLT3+Une
-----END PRIVATE KEY-----
)";
constexpr const char* certificate_of_0_1 = R"(-----BEGIN CERTIFICATE-----
MIIBgTCCASagAwIBAgIRAMJ/ppP7UsxfZqyhwzOTGmQwCgYIKoZIzj0EAwIwHjEc
MBoGA1UEAwwTVHJpYnV0YXJ5IGF1dGhvcml0eTAeFw0yNjExMjYwMDE4NTNaFw00
NjExMjEwMDIzNTNaMB4xHDAaBgNVBAMME1RyaWJ1dGFyeSBhdXRob3JpdHkwWTAT
BgcqhkjOPQIBBggqhkjOPQMBBwNCAAQ73FJZaxMIU9cJbHDNAC94TUtisENERWNn
hqaOHmUVIsMPHyg5z7X5E/tQocvRaP3p5GPQ+9c0AfqoYLT3+Uneo0UwQzASBgNV
HRMBAf8ECDAGAQH/AgEAMA4GA1UdDwEB/wQEAwIBBjAdBgNVHQ4EFgQUBvpOE+Ab
QzqNXkLe9UgGcOgUYwowCgYIKoZIzj0EAwIDSQAwRgIhAMedbUG2iFE3R1BLYcYF
m3xnLUrJH1CJu5pBWVtgq4laAiEAiWZHDyY/WmanjfPX4NbQxfye9OCoGYT9xvDV
FG96Pwc=
-----END CERTIFICATE-----
)";

TEST_CASE("with an intermediate the authority's key may be elsewhere") {
  const TemporaryFolder temp;
  const Path folder = temp / "identity";
  Authority made = open(folder).value();
  const Sha256 fingerprint = made.fingerprint();
  CHECK(!made.intermediate_life());
  const std::string key = take_key_away(made, folder, some_time).value();
  CHECK(mode_of(folder / "ca-intermediate.pem") == 0600);

  Authority authority = open(folder).value();
  CHECK(authority.fingerprint() == fingerprint);
  CHECK(authority.trusted_pem() == made.trusted_pem());
  CHECK(authority.intermediate_life()->not_after == some_time + intermediate_life_s);
  const auto trusted = parse_certificates(authority.trusted_pem()).value();
  REQUIRE(trusted.size() == 2);
  CHECK(is_signed_by(*trusted[1], *trusted[0]));
  const auto client = authority.issue_client("a", new_request_pem(), some_time).value();
  CHECK(is_signed_by(*parse_certificate(client.pem).value(), *trusted[1]));
  const auto server = authority.issue_server({"localhost"}, some_time).value();
  const auto chain = parse_certificates(server.chain_pem).value();
  REQUIRE(chain.size() == 3);
  CHECK(is_signed_by(*chain[0], *trusted[1]));
  CHECK(to_pem(*chain[1]).value() + to_pem(*chain[2]).value() ==
        to_pem(*trusted[1]).value() + to_pem(*trusted[0]).value());

  // The next one takes the key.
  const auto refused = authority.make_intermediate(posix_files(), folder, some_time, "");
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::not_found);
  CHECK(contains(refused.error().message(), (folder / "ca.key").string()));
  write_text(folder / "ca.key", to_pem(*make_key().value()).value());
  CHECK(authority.make_intermediate(posix_files(), folder, some_time, "").error().code() ==
        Errc::corrupt);
  write_text(folder / "ca.key", key);
  REQUIRE(authority.make_intermediate(posix_files(), folder, some_time + day_s, ""));
  CHECK(parse_certificates(authority.trusted_pem())->size() == 3);
  CHECK(contains(authority.trusted_pem(), to_pem(*trusted[1]).value()));
  const double first_ends = some_time + intermediate_life_s;
  CHECK(parse_certificates(open(folder, first_ends)->trusted_pem())->size() == 3);
  CHECK(parse_certificates(open(folder, first_ends + 1)->trusted_pem())->size() == 2);
}

TEST_CASE("what an intermediate certifies ends with it, and then it certifies nothing") {
  const TemporaryFolder temp;
  const Path folder = temp / "identity";
  Authority authority = open(folder).value();
  const std::string key = take_key_away(authority, folder, some_time).value();
  const double end = some_time + intermediate_life_s;
  const auto server = authority.issue_server({"localhost"}, end - day_s).value();
  CHECK(server.life.not_after == end);
  const auto client = authority.issue_client("a", new_request_pem(), end - day_s).value();
  CHECK(validity(*parse_certificate(client.pem).value())->not_after == end);
  Authority late = open(folder, end + 1).value();
  const auto refused = late.issue_server({"localhost"}, end + 1);
  REQUIRE(!refused);
  CHECK(contains(refused.error().message(), "rotate-ca --intermediate"));
  CHECK(!late.issue_client("a", new_request_pem(), end + 1));
  write_text(folder / "ca.key", key);
  REQUIRE(late.make_intermediate(posix_files(), folder, end + 1, ""));
  CHECK(late.issue_server({"localhost"}, end + 1));
}

TEST_CASE("an authority that may not have an intermediate says so") {
  const TemporaryFolder temp;
  const Path folder = temp / "identity";
  std::filesystem::create_directories(folder);
  write_text(folder / "ca.key", key_of_0_1);
  write_text(folder / "ca.crt", certificate_of_0_1);
  Authority authority = open(folder).value();
  const auto refused = authority.make_intermediate(posix_files(), folder, some_time, "");
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::conflict);
  CHECK(contains(refused.error().message(), "rotate-ca"));
  REQUIRE(authority.begin_rotation(posix_files(), folder, some_time, ""));
  CHECK(authority.make_intermediate(posix_files(), folder, some_time, "").error().code() ==
        Errc::conflict);
  REQUIRE(authority.finish_rotation(posix_files(), folder));
  CHECK(authority.make_intermediate(posix_files(), folder, some_time, ""));
}

TEST_CASE("a damaged intermediate is refused by name, as is another authority's") {
  const TemporaryFolder temp;
  const Path folder = temp / "identity";
  Authority authority = open(folder).value();
  REQUIRE(take_key_away(authority, folder, some_time));
  const std::string right = read_text(folder / "ca-intermediate.pem");
  Authority other = open(temp / "other").value();
  REQUIRE(take_key_away(other, temp / "other", some_time));
  const std::string foreign = read_text(temp / "other/ca-intermediate.pem");
  const std::string mixed = foreign.substr(0, foreign.find("-----BEGIN CERT")) +
                            right.substr(right.find("-----BEGIN CERT"));
  for (const std::string& text : {std::string(), right.substr(0, right.size() / 3),
                                  right.substr(0, right.size() - 30), foreign, mixed}) {
    write_text(folder / "ca-intermediate.pem", text);
    const auto opened = open(folder);
    REQUIRE(!opened);
    CHECK(opened.error().code() == Errc::corrupt);
    CHECK(contains(opened.error().message(), "ca-intermediate.pem"));
  }
  write_text(folder / "ca-intermediate.pem", right);
  CHECK(open(folder));
}

TEST_CASE("a crash at any point of making an intermediate or dropping it leaves what works") {
  int changes = 0;
  for (bool done = false; !done; ++changes) {
    const TemporaryFolder temp;
    const Path folder = temp / "identity";
    Authority authority = open(folder).value();
    REQUIRE(authority.make_intermediate(posix_files(), folder, some_time, ""));
    CrashingFiles disk(changes);
    done = authority.make_intermediate(disk, folder, some_time, "").has_value() &&
           authority.begin_rotation(disk, folder, some_time, "").has_value() &&
           authority.finish_rotation(disk, folder).has_value();
    const auto next = open(folder);
    REQUIRE(next);
    CHECK(next->issue_server({"localhost"}, some_time));
    CHECK(next->issue_client("a", new_request_pem(), some_time));
    CHECK(next->fingerprint() == authority_fingerprint(posix_files(), folder).value());
    if (done) CHECK(!std::filesystem::exists(folder / "ca-intermediate.pem"));
    if (done) CHECK(!next->intermediate_life());
  }
  CHECK(changes > 10);
}

TEST_CASE("with a passphrase an intermediate's key is encrypted, too") {
  const TemporaryFolder temp;
  const Path folder = temp / "identity";
  Authority authority = open(folder).value();
  REQUIRE(take_key_away(authority, folder, some_time));
  CHECK(!is_encrypted_key(read_text(folder / "ca-intermediate.pem")));
  const auto with = [&](const std::string& passphrase) {
    return Authority::open_or_create(posix_files(), folder, some_time, passphrase);
  };
  REQUIRE(with("correct horse"));
  CHECK(is_encrypted_key(read_text(folder / "ca-intermediate.pem")));
  CHECK(with("correct horse")->issue_client("a", new_request_pem(), some_time));
  CHECK(with("").error().code() == Errc::unauthenticated);
  CHECK(with("wrong").error().code() == Errc::unauthenticated);
}

TEST_CASE("a client certificate has the right name, purpose and validity") {
  const TemporaryFolder temp;
  const Authority authority = open(temp / "identity").value();
  const auto issued = authority.issue_client("site-7.lab_a", new_request_pem(), some_time);
  REQUIRE(issued);
  const CertificatePtr certificate = parse_certificate(issued->pem).value();
  const CertificatePtr ca = parse_certificate(authority.certificate_pem()).value();
  CHECK(is_signed_by(*certificate, *ca));
  CHECK(common_name(*certificate) == "site-7.lab_a");
  CHECK(serial_hex(*certificate) == issued->serial);
  CHECK(issued->serial.size() == 32);
  CHECK(X509_get_extended_key_usage(certificate.get()) == XKU_SSL_CLIENT);
  CHECK(X509_check_ca(certificate.get()) == 0);
  const Validity life = validity(*certificate).value();
  CHECK(life.not_before == some_time - clock_skew_s);
  CHECK(life.not_after == some_time + certificate_life_s);
  CHECK(authority.issue_client("b", new_request_pem(), some_time)->serial != issued->serial);
}

TEST_CASE("a server certificate is for servers only, and for the given hosts") {
  const TemporaryFolder temp;
  const Authority authority = open(temp / "identity").value();
  const auto issued = authority.issue_server({"fl.example", "127.0.0.1", "::1"}, some_time);
  REQUIRE(issued);
  const CertificatePtr certificate = parse_certificate(issued->chain_pem).value();
  CHECK(X509_get_extended_key_usage(certificate.get()) == XKU_SSL_SERVER);
  CHECK(X509_check_host(certificate.get(), "fl.example", 0, 0, nullptr) == 1);
  CHECK(X509_check_host(certificate.get(), "other.example", 0, 0, nullptr) == 0);
  CHECK(X509_check_ip_asc(certificate.get(), "127.0.0.1", 0) == 1);
  CHECK(X509_check_ip_asc(certificate.get(), "::1", 0) == 1);
  CHECK(fits(*certificate, *parse_key(issued->key_pem).value()));
  CHECK(issued->life.renew_at() > some_time + certificate_life_s / 2);
  CHECK(issued->life.renew_at() < some_time + certificate_life_s);
  CHECK(!issued->is_due(some_time));
  CHECK(issued->is_due(some_time + certificate_life_s));
  // The clock was set back after a jump: nobody would accept this certificate now.
  CHECK(issued->is_due(some_time - 100 * day_s));

  for (const char* host : {"", "a,DNS:evil.example", "a b", "fe80::1%eth0", "-x"})
    CHECK(authority.issue_server({host}, some_time).error().code() == Errc::invalid_input);
  CHECK(authority.issue_server({}, some_time).error().code() == Errc::invalid_input);
}

TEST_CASE("invalid client names are refused") {
  for (const char* name : {"a", "7", "site-1", "A.b_c-9"}) CHECK(check_client_name(name));
  CHECK(check_client_name(std::string(64, 'x')));
  for (const std::string& name :
       {std::string(), std::string(65, 'x'), std::string(".."), std::string("-v"),
        std::string("a b"), std::string("a/b"), std::string("ü"), std::string("a\0b", 3)}) {
    const auto checked = check_client_name(name);
    REQUIRE(!checked);
    CHECK(checked.error().code() == Errc::invalid_input);
    CHECK(contains(checked.error().message(), "client name"));
  }
}

TEST_CASE("requests that don't prove their key are refused; their other contents are ignored") {
  const TemporaryFolder temp;
  const Authority authority = open(temp / "identity").value();
  const auto refusal = [&](const std::string& pem) {
    const auto issued = authority.issue_client("a", pem, some_time);
    REQUIRE(!issued);
    CHECK(issued.error().code() == Errc::invalid_input);
    return issued.error().message();
  };
  CHECK(contains(refusal(""), "not a valid signing request"));
  CHECK(contains(refusal(authority.certificate_pem()), "not a valid signing request"));
  const std::string good = new_request_pem();
  CHECK(contains(refusal(good.substr(0, good.size() / 2)), "not a valid signing request"));

  // Somebody else's public key, signed with one's own key.
  const KeyPtr mine = make_key().value();
  const KeyPtr other = make_key().value();
  const RequestPtr forged = make_request(*mine).value();
  X509_REQ_set_pubkey(forged.get(), other.get());
  CHECK(contains(refusal(to_pem(*forged).value()), "not signed by its own key"));
  REQUIRE(X509_REQ_sign(forged.get(), mine.get(), EVP_sha256()) > 0);
  CHECK(contains(refusal(to_pem(*forged).value()), "not signed by its own key"));

  const KeyPtr rsa(EVP_RSA_gen(1024));
  CHECK(contains(refusal(to_pem(*make_request(*rsa).value()).value()), "not ECDSA on P-256"));
  const KeyPtr p384(EVP_EC_gen("P-384"));
  CHECK(contains(refusal(to_pem(*make_request(*p384).value()).value()), "not ECDSA on P-256"));

  // A subject and extensions that ask for more.
  const RequestPtr greedy(X509_REQ_new());
  const auto* admin = reinterpret_cast<const unsigned char*>("admin");
  X509_NAME_add_entry_by_NID(X509_REQ_get_subject_name(greedy.get()), NID_commonName, MBSTRING_ASC,
                             admin, -1, -1, 0);
  STACK_OF(X509_EXTENSION)* wishes = sk_X509_EXTENSION_new_null();
  sk_X509_EXTENSION_push(
      wishes, X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE"));
  X509_REQ_add_extensions(greedy.get(), wishes);
  sk_X509_EXTENSION_pop_free(wishes, X509_EXTENSION_free);
  X509_REQ_set_pubkey(greedy.get(), mine.get());
  REQUIRE(X509_REQ_sign(greedy.get(), mine.get(), EVP_sha256()) > 0);
  const auto issued = authority.issue_client("modest", to_pem(*greedy).value(), some_time);
  REQUIRE(issued);
  const CertificatePtr certificate = parse_certificate(issued->pem).value();
  CHECK(common_name(*certificate) == "modest");
  CHECK(X509_check_ca(certificate.get()) == 0);
}

}  // namespace
}  // namespace fl
