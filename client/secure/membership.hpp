// SPDX-License-Identifier: Apache-2.0
// Membership: which member list a site goes by. It keeps the list that it has accepted in its state
// folder, as FOLDER/members.txt. A list that follows that one waits in FOLDER/members-proposed.txt
// until a person has allowed it: the server hands lists out, and may not change them. Blocking; one
// thread at a time.
#pragma once

#include "client/secure/secure_options.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace fl::client {

class Membership {
 public:
  /// The references must outlive it.
  Membership(Files& files, std::filesystem::path folder, const SecureOptions& options)
      : files_(files), folder_(std::move(folder)), options_(options) {}

  /// Decides on a server's member list. The first one must be the one that the options trust, or
  /// have the signature that they trust. A list that the options name is allowed by that.
  /// `own_name`: this site's; it must be in the list with the key of this site. Errors:
  /// invalid_input, with what a person can do; corrupt, naming the file that can't be read; those
  /// of the disk.
  [[nodiscard]] Result<std::shared_ptr<const secure::MemberList>> accept(const std::string& text,
                                                                         std::string_view own_name);

 private:
  [[nodiscard]] Result<void> check_first(const secure::MemberList& list) const;
  [[nodiscard]] Result<void> check_next(const std::string& text, const secure::MemberList& list,
                                        const secure::MemberList& accepted);
  [[nodiscard]] Result<void> check_own(const secure::MemberList& list,
                                       std::string_view own_name) const;

  Files& files_;
  const std::filesystem::path folder_;
  const SecureOptions& options_;
};

/// Makes the list that waits the accepted one. `digest_hex`: its digest, which the person has seen.
/// Errors: not_found, if none waits; invalid_input, for another digest, or a list that does not
/// follow the accepted one; corrupt, naming the file; those of the disk.
[[nodiscard]] Result<void> approve_members(Files& files, const std::filesystem::path& folder,
                                           const std::string& digest_hex);

/// Removes the accepted list, and the one that waits: for simulations, which make all keys anew.
[[nodiscard]] Result<void> forget_members(Files& files, const std::filesystem::path& folder);

}  // namespace fl::client
