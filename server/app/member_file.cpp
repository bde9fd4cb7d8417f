// SPDX-License-Identifier: Apache-2.0
#include "server/app/member_file.hpp"

#include "server/run/masked_settings.hpp"
#include "shared/base/log.hpp"
#include "shared/secure/primitives.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl::server {

Result<MemberFile> read_member_file(Files& files, const std::string& path) {
  FL_TRY(std::string text, files.read_all(path, secure::member_list_bytes_max));
  auto list = secure::parse_member_list(text);
  if (!list) return list.error().at(path);
  return MemberFile{std::move(text), std::move(*list)};
}

std::string lone_signer_warning(const secure::MemberList& list) {
  if (list.needs > 1) return "";
  return "one signature is enough for this list. Whoever runs the server must not be a signer: it "
         "could list members of its own and read the others' updates";
}

Result<std::optional<MemberFile>> read_served_members(Files& files, const std::string& path) {
  if (path.empty()) return std::optional<MemberFile>();
  FL_CHECK(secure::check_primitives());
  auto read = read_member_file(files, path);
  if (!read) return read.error().at("--members");
  if (const auto is_signed = secure::check_signed(read->list); !is_signed) {
    return Error(Errc::invalid_input,
                 fmt::format("--members: {}: {}; its signers sign it with 'fl-server members sign'",
                             path, is_signed.error().message()));
  }
  if (const std::string warning = lone_signer_warning(read->list); !warning.empty())
    log_warn("--members {}: {}", path, warning);
  return std::optional(std::move(*read));
}

Result<void> check_members_given(const RunSettings& settings,
                                 const std::optional<MemberFile>& members) {
  const auto masked = parse_secure_aggregation(settings.secure_aggregation);
  if (!masked) return masked.error().at("--secure-aggregation");
  if (!*masked || members) return {};
  return Error(Errc::invalid_input,
               "the run has --secure-aggregation, and the server has no member list: give "
               "--members FILE, the list that the members' sites trust ('fl-server members' signs "
               "it)");
}

Result<void> check_members(const RunSettings& settings, const std::optional<MemberFile>& members) {
  FL_CHECK(check_members_given(settings, members));
  FL_TRY(const auto masked, parse_secure_aggregation(settings.secure_aggregation));
  if (!masked) return {};
  const std::uint32_t least = members->list.smallest_cohort;
  if (settings.min_clients >= least) return {};
  return Error(Errc::invalid_input,
               fmt::format("--min-clients is {}, and the list of --members has smallest-cohort {}, "
                           "so its members refuse smaller rounds: give --min-clients {}",
                           settings.min_clients, least, least));
}

}  // namespace fl::server
