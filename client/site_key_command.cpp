// SPDX-License-Identifier: Apache-2.0
#include "client/site_key_command.hpp"

#include "client/secure_flags.hpp"
#include "shared/base/log.hpp"
#include "shared/flags/flags.hpp"
#include "shared/secure/key_file.hpp"
#include "shared/secure/member_list.hpp"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>
#include <string>

namespace fl::client {

namespace {

struct SiteKeyOptions {
  std::string file = usual_site_key_file;
};

Result<void> show_site_key(const SiteKeyOptions& options) {
  FL_CHECK(secure::check_primitives());
  Files& files = posix_files();
  const bool is_new = !files.exists(options.file);
  FL_TRY(const secure::Secret secret, is_new ? secure::make_key_file(files, options.file)
                                             : secure::read_key_file(files, options.file));
  if (is_new) {
    fmt::print(stderr,
               "{} is new. Keep a copy in a safe place: whoever has it can speak for this site\n",
               options.file);
  }
  const secure::Public key = secure::signing_key(secret);
  fmt::print("{}\n", secure::key_text(key));
  fmt::print(stderr, "to compare on the telephone: {}\n", secure::fingerprint_of(key));
  return {};
}

}  // namespace

std::function<int()> declare_site_key_command(CLI::App& app) {
  auto* const command = app.add_subcommand(
      "site-key",
      "Prints the public half of the key that other sites know this one by in a member list, and "
      "makes the key where there is none. Signers of such lists make theirs in the same way "
      "('fl-server members')");
  command->fallthrough(false);  // The client's flags are no flags of this command.
  const auto options = std::make_shared<SiteKeyOptions>();
  command->add_option("--key", options->file, "The file of the key, which only you may read")
      ->type_name("FILE")
      ->check(not_empty())
      ->capture_default_str();
  return [command, options] {
    if (!*command) return -1;
    start_log(false, false);
    const auto done = show_site_key(*options);
    if (!done) log_fatal("fl-client site-key", done.error().message());
    return done ? 0 : 1;
  };
}

}  // namespace fl::client
