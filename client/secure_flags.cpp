// SPDX-License-Identifier: Apache-2.0
#include "client/secure_flags.hpp"

#include "shared/flags/flags.hpp"
#include "shared/secure/key_file.hpp"

#include <fmt/format.h>

#include <utility>
#include <variant>

namespace fl::client {

namespace {

using Trusted = std::variant<secure::MemberList, secure::Public>;

/// The list in the file of that name or, if there is none, a signer's key.
Result<Trusted> read_trusted(Files& files, const std::string& members) {
  if (files.exists(members)) {
    FL_TRY(const std::string text, files.read_all(members, secure::member_list_bytes_max));
    auto list = secure::parse_member_list(text);
    if (!list) return list.error().at(members);
    return Trusted(std::move(*list));
  }
  const auto key = secure::parse_key_text(members);
  if (key) return Trusted(*key);
  return Error(Errc::not_found,
               fmt::format("there is no file '{}', and it is not the key of a signer, which has 64 "
                           "hexadecimal digits: name the member list that this site trusts",
                           members));
}

}  // namespace

void declare_secure_flags(CLI::App& app, SecureFlags& flags) {
  auto* const members =
      app.add_option("--members", flags.members,
                     "Train in masked runs only, where the server can read no single update, with "
                     "the members of this list; or of any list that the signer with this key has "
                     "signed")
          ->type_name("FILE|KEY")
          ->check(not_empty());
  app.add_option("--site-key", flags.site_key,
                 "The file of this site's key, which the member list has; 'fl-client site-key' "
                 "makes it")
      ->type_name("FILE")
      ->check(not_empty())
      ->needs(members)
      ->capture_default_str();
  app.add_option("--min-cohort", flags.cohort_min,
                 "Take part in no masked round with fewer members than this; the list may ask for "
                 "more")
      ->check(whole_number_in(secure::cohort_min, secure::cohort_max))
      ->needs(members)
      ->capture_default_str();
  app.add_flag("--allow-same-version", flags.allows_same_version,
               "Let this site train from one model version more than once. Only for tests: the "
               "sums of two runs that differ by one member show that member's update")
      ->needs(members);
}

Result<std::optional<SecureOptions>> read_secure_options(Files& files, const SecureFlags& flags) {
  if (flags.members.empty()) return std::optional<SecureOptions>();
  FL_CHECK(secure::check_primitives());
  auto trusted = read_trusted(files, flags.members);
  if (!trusted) return trusted.error().at("--members");
  if (!files.exists(flags.site_key)) {
    return Error(Errc::not_found,
                 fmt::format("--members needs this site's key, and there is no file {}: make it "
                             "with 'fl-client site-key --key {}', or say with --site-key where it "
                             "is",
                             flags.site_key, flags.site_key));
  }
  auto key = secure::read_key_file(files, flags.site_key);
  if (!key) return key.error().at("--site-key");
  return std::optional(SecureOptions{.site_key = *key,
                                     .trusted = std::move(*trusted),
                                     .cohort_min = flags.cohort_min,
                                     .allows_same_version = flags.allows_same_version});
}

}  // namespace fl::client
