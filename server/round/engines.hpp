// SPDX-License-Identifier: Apache-2.0
// The engines of a server's runs, all on the same strand. Today a server works on one run after the
// other: an engine is removed when its run is over, and the next one is added. Sessions keep the
// engine that they began with. Any thread, but for what is said below.
#pragma once

#include "server/host/session_hosts.hpp"
#include "server/round/engine.hpp"
#include "shared/base/async/mutex.hpp"

#include <map>
#include <memory>
#include <vector>

namespace fl::server {

class Engines final : public SessionHosts {
 public:
  explicit Engines(std::shared_ptr<RoundEngine> first);

  /// Adds a run's engine before it runs; new sessions join it from now on. `conflict`: another
  /// engine that has not been removed has this run, or would use one of the same folders.
  [[nodiscard]] Result<void> add(std::shared_ptr<RoundEngine> engine);
  /// Call it when the engine's run() has returned: another run may use its folders.
  void remove(RunId run);

  /// The engine of a run that goes on; null if there is none.
  [[nodiscard]] std::shared_ptr<RoundEngine> find(RunId run) const;
  /// The engine that new sessions join: the newest one. Never null. Until another is added it may
  /// be one that was removed: it still answers, and takes no client.
  [[nodiscard]] std::shared_ptr<RoundEngine> newest() const;

  // On the engines' strand, for all runs that go on, and for newest():
  /// Asks for a clean end (RoundEngine::stop).
  void stop();
  /// The store failed in work that was no engine's: all runs stop.
  void fail(const Error& error);

  [[nodiscard]] std::shared_ptr<SessionHost> joined() const override;
  [[nodiscard]] std::vector<std::shared_ptr<SessionHost>> all() const override;

 private:
  [[nodiscard]] std::vector<std::shared_ptr<RoundEngine>> engines() const;

  mutable Mutex mutex_;
  std::map<RunId, std::shared_ptr<RoundEngine>> going_ FL_GUARDED_BY(mutex_);
  std::shared_ptr<RoundEngine> newest_ FL_GUARDED_BY(mutex_);
};

}  // namespace fl::server
