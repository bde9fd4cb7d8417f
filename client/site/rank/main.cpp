// SPDX-License-Identifier: Apache-2.0
// fl-rank: one rank of a site. fl-client starts it and tells it its place by environment variables.
#include "client/site/rank/rank.hpp"
#include "shared/base/documents.hpp"
#include "shared/base/io/secret_file.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/base/spec/spec_text.hpp"
#include "shared/base/state_lock.hpp"
#include "shared/base/version.hpp"
#include "shared/base/write_signals.hpp"

#include <fmt/format.h>

#include <unistd.h>
#include <string>

namespace fl::site {

namespace {

/// The settings in the environment that the agent has made.
struct RankPlace {
  SitePlace place;
  std::string secret;
  double timeout_s = 0;
};

Result<std::string> variable(const char* name) {
  const auto value = system_environment()(name);
  if (value) return *value;
  return Error(Errc::invalid_input,
               fmt::format("the variable {} is not set: fl-rank is started by fl-client --ranks N "
                           "or fl-client --site",
                           name));
}

Result<RankPlace> read_place() {
  RankPlace found;
  FL_TRY(const std::string address, variable(rank_variables::address));
  FL_TRY(auto agent, parse_host_port(address));
  found.place.host = std::move(agent.first);
  found.place.port = agent.second;
  FL_TRY(found.place.interface, variable(rank_variables::interface));
  FL_TRY(found.secret, variable(rank_variables::secret));
  FL_TRY(const std::string timeout, variable(rank_variables::timeout));
  found.timeout_s = number_in<double>(timeout).value_or(limits::rank_timeout_s);
  for (const auto& [name, value] : {std::pair(rank_variables::rank, &found.place.rank),
                                    {rank_variables::size, &found.place.size},
                                    {rank_variables::local_rank, &found.place.local_rank},
                                    {rank_variables::local_size, &found.place.local_size},
                                    {rank_variables::cores, &found.place.cores}}) {
    FL_TRY(const std::string text, variable(name));
    const auto number = number_in<int>(text);
    if (!number || *number < 0)
      return Error(Errc::invalid_input, fmt::format("{} is '{}', not a number", name, text));
    *value = *number;
  }
  return found;
}

Result<void> run() {
  FL_TRY(const RankPlace found, read_place());
  // No child of this program may see the secret.
  ::unsetenv(rank_variables::secret);
  RankLink::Options options;
  options.host = found.place.host;
  options.port = found.place.port;
  options.secret = found.secret;
  options.rank = found.place.rank;
  options.size = found.place.size;
  options.silence = limits::rank_silence;
  options.until = Clock::now() + std::chrono::duration_cast<Duration>(
                                     std::chrono::duration<double>(found.timeout_s));
  // Without an agent there is nothing to do: SIGALRM ends this rank, whatever it waits for.
  options.on_lost = [] { ::alarm(static_cast<unsigned>(limits::trainer_grace.count())); };
  FL_TRY(const auto link, RankLink::connect(options));
  Rank rank(*link, found.place);
  return rank.run();
}

}  // namespace

}  // namespace fl::site

int main(int argc, char** argv) {
  if (argc > 1) {
    const bool is_version = std::string_view(argv[1]) == "--version";
    fmt::print("{}\n", is_version ? fmt::format("fl-rank {}", fl::software_version_and_commit)
                                  : "fl-rank is one rank of a site. Start it by fl-client --ranks "
                                    "N, or by fl-client --site under a launcher; see " +
                                        fl::document_path("docs/guide/sites.md"));
    return is_version || std::string_view(argv[1]) == "--help" ? 0 : 2;
  }
  fl::keep_files_private();
  fl::ignore_write_signals();
  fl::start_log(false, false);
  try {
    const auto result = fl::site::run();
    if (result) return 0;
    fl::log_fatal("fl-rank", result.error().message());
  } catch (const std::exception& error) {
    fl::log_fatal("fl-rank", error.what());
  }
  return 1;
}
