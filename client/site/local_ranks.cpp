// SPDX-License-Identifier: Apache-2.0
#include "client/site/local_ranks.hpp"

#include "shared/base/environment.hpp"
#include "shared/base/io/secret_file.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <unistd.h>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace fl::site {

namespace {

/// Quotes a text for /bin/sh.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

Result<std::filesystem::path> rank_program() {
  std::error_code failure;
  const auto here = std::filesystem::read_symlink("/proc/self/exe", failure).parent_path();
  auto path = here / "fl-rank";
  if (std::filesystem::exists(path, failure)) return path;
  return Error(Errc::not_found,
               fmt::format("{} is missing: a site's ranks are this program", path.string()));
}

std::vector<std::pair<std::string, std::string>> variables_of(const SitePlace& place,
                                                              const std::string& secret,
                                                              double timeout_s) {
  return {
      {rank_variables::address, fmt::format("{}:{}", place.host, place.port)},
      {rank_variables::secret, secret},
      {rank_variables::timeout, fmt::to_string(timeout_s)},
      {rank_variables::interface, place.interface},
      {rank_variables::rank, std::to_string(place.rank)},
      {rank_variables::size, std::to_string(place.size)},
      {rank_variables::local_rank, std::to_string(place.local_rank)},
      {rank_variables::local_size, std::to_string(place.local_size)},
      {rank_variables::cores, std::to_string(place.cores)},
  };
}

/// Becomes fl-rank; returns only with an error.
Error become_rank(const SitePlace& place, const std::string& secret, double timeout_s) {
  FL_TRY(const auto program, rank_program());
  for (const auto& [name, value] : variables_of(place, secret, timeout_s))
    ::setenv(name.c_str(), value.c_str(), 1);
  ::execl(program.c_str(), program.c_str(), nullptr);
  return errno_error("can't start " + program.string());
}

}  // namespace

Result<std::optional<SitePlace>> take_place(const SiteOptions& options) {
  if (!options.launched) return std::optional<SitePlace>();
  FL_TRY(SitePlace place, find_place(system_environment(), options.address));
  FL_TRY(const auto secret, read_secret_file(posix_files(), options.secret_file));
  place.interface = options.interface;
  if (place.rank > 0) return become_rank(place, secret, options.timeout_s);
  return std::optional(place);
}

Result<void> LocalRanks::start_missing(std::uint16_t port) {
  FL_TRY(const auto program, rank_program());
  const MutexLock lock(mutex_);
  for (SitePlace place : options_.places) {
    place.port = port;
    auto& child = ranks_[place.rank];
    if (child && !child->has_ended()) continue;
    if (child) endings_[place.rank] = child->ending();
    if (const auto ending = endings_.find(place.rank); ending != endings_.end()) {
      log_warn("rank {} ended ({}); starting it again", place.rank, ending->second);
      endings_.erase(ending);
    }
    ChildProcess::Options start;
    start.command = "exec " + quoted(program.string());
    start.name = fmt::format("rank {}", place.rank);
    start.variables = variables_of(place, options_.secret, options_.timeout_s);
    FL_TRY(child, ChildProcess::start(start));
  }
  return {};
}

std::string LocalRanks::ending_of(int rank) {
  const MutexLock lock(mutex_);
  if (const auto found = endings_.find(rank); found != endings_.end()) return found->second;
  const auto child = ranks_.find(rank);
  const bool has_ended = child != ranks_.end() && child->second && child->second->has_ended();
  return has_ended ? child->second->ending() : "";
}

void LocalRanks::end(int rank) {
  const MutexLock lock(mutex_);
  const auto found = ranks_.find(rank);
  if (found == ranks_.end() || !found->second) return;
  const bool ended_itself = found->second->wait(Clock::now() + limits::rank_gone_wait);
  endings_[rank] = ended_itself ? found->second->ending() : "it was stopped or hung, and is killed";
  found->second.reset();  // Kills it, also if it is stopped.
}

void LocalRanks::end_all() {
  const MutexLock lock(mutex_);
  const TimePoint until = Clock::now() + limits::trainer_grace;
  for (auto& [rank, child] : ranks_) {
    if (child && !child->wait(until)) log_warn("rank {} does not end and is killed", rank);
    child.reset();
  }
}

}  // namespace fl::site
