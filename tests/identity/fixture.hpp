// SPDX-License-Identifier: Apache-2.0
// What the identity tests share: a disk that fails from some change on, a book of tokens in memory,
// and helpers for files, keys and certificates.
#pragma once

#include "shared/base/async/clock.hpp"
#include "shared/identity/client_identity.hpp"
#include "shared/identity/enrolment.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <sstream>

/// Lets a failed check print a Result.
template <class T>
struct doctest::StringMaker<boost::system::result<T, fl::Error>> {
  static String convert(const boost::system::result<T, fl::Error>& result) {
    return result.has_value() ? String("a value") : String(result.error().message().c_str());
  }
};

namespace fl::test {

using Path = std::filesystem::path;

/// A moment in Unix seconds, for tests that pass the time as an argument.
inline constexpr double some_time = 1.8e9;

/// The real disk for the given number of changes. After that every change fails, as after a crash.
/// Earlier changes stay.
class CrashingFiles : public Files {
 public:
  explicit CrashingFiles(int changes) : changes_left_(changes) {}

  Result<std::unique_ptr<File>> open(const Path& path, OpenMode mode) override {
    if (mode != OpenMode::read) FL_CHECK(change());
    return posix_files().open(path, mode);
  }
  Result<void> rename(const Path& from, const Path& to) override {
    FL_CHECK(change());
    return posix_files().rename(from, to);
  }
  Result<void> remove(const Path& path) override {
    FL_CHECK(change());
    return posix_files().remove(path);
  }
  bool exists(const Path& path) override { return posix_files().exists(path); }
  Result<std::vector<std::string>> list(const Path& folder) override {
    return posix_files().list(folder);
  }
  Result<void> make_folder(const Path& folder) override {
    FL_CHECK(change());
    return posix_files().make_folder(folder);
  }
  Result<void> sync_folder(const Path& folder) override {
    FL_CHECK(change());
    return posix_files().sync_folder(folder);
  }

 private:
  Result<void> change() {
    if (changes_left_-- <= 0) return Error(Errc::io, "the disk is gone");
    return {};
  }
  int changes_left_;
};

class MemoryBook : public TokenBook {
 public:
  void add(const JoinToken& token, std::string name, double expires_at) {
    tokens[token.id_hex()] = Token{std::move(name), token.secret_hash(), expires_at, 0};
  }

  Result<std::optional<Token>> find_token(std::string_view id) override {
    const auto found = tokens.find(std::string(id));
    return found == tokens.end() ? std::nullopt : std::optional(found->second);
  }
  Result<bool> is_revoked(std::string_view client) override { return client == revoked; }
  Result<void> use_token(std::string_view id, std::string_view client, std::string_view serial,
                         std::string_view key_digest, double now) override {
    if (lost_race) return Error(Errc::conflict, "used since");
    tokens.at(std::string(id)).used_at = now;
    tokens.at(std::string(id)).key_digest = key_digest;
    serials[std::string(client)] = serial;
    return {};
  }

  std::map<std::string, Token> tokens;
  std::map<std::string, std::string> serials;
  std::string revoked;
  bool lost_race = false;
};

inline std::string read_text(const Path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void write_text(const Path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline Authority new_authority(const Path& folder) {
  return Authority::open_or_create(posix_files(), folder, Clock::unix_seconds()).value();
}

/// Enrols a client in `folder`, with a certificate issued at `now`.
inline ClientIdentity new_identity(const Authority& authority, const Path& folder,
                                   std::string_view name, double now = Clock::unix_seconds()) {
  const auto request = ClientIdentity::request_certificate(posix_files(), folder);
  const auto issued = authority.issue_client(name, request.value(), now);
  const ServerAddress server{"localhost", 8443};
  return ClientIdentity::finish_joining(posix_files(), folder, server, "1d", issued.value().pem,
                                        authority.certificate_pem())
      .value();
}

/// Makes an intermediate, and takes the authority's key out of the folder.
inline Result<std::string> take_key_away(Authority& authority, const Path& folder, double now) {
  FL_CHECK(authority.make_intermediate(posix_files(), folder, now, ""));
  FL_TRY(std::string key, posix_files().read_all(folder / "ca.key"));
  FL_CHECK(posix_files().remove(folder / "ca.key"));
  return key;
}

inline std::string new_request_pem() {
  const KeyPtr key = make_key().value();
  return to_pem(*make_request(*key).value()).value();
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != text.npos;
}

}  // namespace fl::test
