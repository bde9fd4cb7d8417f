// SPDX-License-Identifier: Apache-2.0
// The flags of a client about masked rounds: whose keys it trusts, and its own.
#pragma once

#include "client/secure/secure_options.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace fl::client {

/// Where `fl-client site-key` puts a site's key unless --key says otherwise.
inline constexpr const char* usual_site_key_file = "site.key";

struct SecureFlags {
  std::string members;  // The file of a member list, or a signer's key; "": no masked rounds.
  std::string site_key = usual_site_key_file;
  std::uint32_t cohort_min = secure::cohort_min;
  bool allows_same_version = false;
};

/// Declares --members, and --site-key, --min-cohort and --allow-same-version, which need it.
/// `flags` must live until `app` has parsed.
void declare_secure_flags(CLI::App& app, SecureFlags& flags);

/// Reads the files that the flags name. nullopt without --members. Blocking. Errors name flag, file
/// and remedy.
[[nodiscard]] Result<std::optional<SecureOptions>> read_secure_options(Files& files,
                                                                       const SecureFlags& flags);

}  // namespace fl::client
