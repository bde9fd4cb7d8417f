// SPDX-License-Identifier: Apache-2.0
// Sites that mask their updates: their keys, and the lists that name them.
#pragma once

#include "client/secure/secure_options.hpp"
#include "shared/base/io/text_of_bytes.hpp"
#include "shared/secure/member_list.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::client;
using secure::MemberList;
using secure::Public;
using secure::Secret;

inline const std::filesystem::path site_folder = "/site";
inline const std::vector<std::string> sites = {"east", "north", "west"};

inline Secret secret_of(const std::string& name) {
  return Secret(secure::digest_of({bytes_of(std::string_view("key of " + name))}));
}
inline Public public_of(std::string_view name) { return secure::digest_of({bytes_of(name)}); }

/// A list of these members with the signatures of these people, who are the signers.
inline std::string list_text(const std::vector<std::string>& members,
                             const std::vector<std::string>& signers, const std::string& head) {
  std::string text = "tributary-members 1\nsmallest-cohort 3\n" + head;
  const auto add = [&](const char* word, const std::string& name) {
    text += fmt::format("{} {} {}\n", word, name,
                        secure::key_text(secure::signing_key(secret_of(name))));
  };
  for (const std::string& name : signers) add("signer", name);
  for (const std::string& name : members) add("member", name);
  const auto list = secure::parse_member_list(text).value();
  for (const std::string& name : signers)
    text += secure::signature_line(list, secret_of(name)).value() + "\n";
  return text;
}

inline std::string first_list() { return list_text(sites, {"ada"}, "needs 1\nepoch 1\n"); }
inline Public digest_in(const std::string& text) {
  return secure::parse_member_list(text).value().digest();
}
/// A list that follows the first one and has another member.
inline std::string second_list() {
  std::vector<std::string> more = sites;
  more.push_back("south");
  return list_text(more, {"ada"},
                   fmt::format("needs 1\nepoch 2\nbefore {}\n", to_hex(digest_in(first_list()))));
}

inline SecureOptions trusting(const std::string& list) {
  return {.site_key = secret_of("north"), .trusted = secure::parse_member_list(list).value()};
}
inline SecureOptions trusting_signer(const std::string& name) {
  return {.site_key = secret_of("north"), .trusted = secure::signing_key(secret_of(name))};
}

inline bool has_words(const std::string& text, std::string_view what) {
  INFO(text);
  return text.find(what) != std::string::npos;
}

}  // namespace fl::test
