// SPDX-License-Identifier: Apache-2.0
#include "server/round/engines.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl::server {

namespace {

/// The folder that both runs would write to; "" if there is none.
std::string shared_folder(const RunFiles::Paths& a, const RunFiles::Paths& b) {
  const auto same = [](const std::filesystem::path& one, const std::filesystem::path& other) {
    return one.lexically_normal() == other.lexically_normal();
  };
  if (same(a.checkpoints, b.checkpoints)) return a.checkpoints.string();
  if (same(a.spool, b.spool)) return a.spool.string();
  if (same(a.references, b.references)) return a.references.string();
  if (same(a.kept_updates, b.kept_updates)) return a.kept_updates.string();
  return "";
}

}  // namespace

Engines::Engines(std::shared_ptr<RoundEngine> first) : newest_(first) {
  going_.emplace(first->run_id(), std::move(first));
}

Result<void> Engines::add(std::shared_ptr<RoundEngine> engine) {
  const RunId run = engine->run_id();
  const MutexLock lock(mutex_);
  for (const auto& [other, going] : going_) {
    if (other == run) return Error(Errc::conflict, fmt::format("run {} goes on already", run));
    const std::string folder = shared_folder(engine->paths(), going->paths());
    if (folder.empty()) continue;
    return Error(
        Errc::conflict,
        fmt::format("run {} can't begin beside run {}, whose files lie in the same folder {}", run,
                    other, folder));
  }
  newest_ = engine;
  going_.emplace(run, std::move(engine));
  return {};
}

void Engines::remove(RunId run) {
  const MutexLock lock(mutex_);
  going_.erase(run);
}

std::shared_ptr<RoundEngine> Engines::find(RunId run) const {
  const MutexLock lock(mutex_);
  const auto found = going_.find(run);
  return found != going_.end() ? found->second : nullptr;
}

std::shared_ptr<RoundEngine> Engines::newest() const {
  const MutexLock lock(mutex_);
  return newest_;
}

std::vector<std::shared_ptr<RoundEngine>> Engines::engines() const {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<RoundEngine>> found;
  for (const auto& [run, engine] : going_) found.push_back(engine);
  if (!going_.contains(newest_->run_id())) found.push_back(newest_);
  return found;
}

void Engines::stop() {
  for (const auto& engine : engines()) engine->stop();
}

void Engines::fail(const Error& error) {
  for (const auto& engine : engines()) engine->fail(error);
}

std::shared_ptr<SessionHost> Engines::joined() const { return host_of(newest()); }

std::vector<std::shared_ptr<SessionHost>> Engines::all() const {
  std::vector<std::shared_ptr<SessionHost>> hosts;
  for (auto& engine : engines()) hosts.push_back(host_of(std::move(engine)));
  return hosts;
}

}  // namespace fl::server
