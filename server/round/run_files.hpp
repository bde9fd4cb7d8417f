// SPDX-License-Identifier: Apache-2.0
// The files of a run beside the history. The folders are the run's alone while it goes on:
// the spool and the references remove whatever is not theirs. A run that follows another one may
// have the same spool and references (Engines::add). On the engine's strand; each part says what
// workers may call.
#pragma once

#include "server/round/kept_updates.hpp"
#include "server/round/spool.hpp"
#include "server/versions/delta_references.hpp"
#include "server/versions/versions.hpp"

#include <filesystem>
#include <utility>

namespace fl::server {

struct RunFiles {
  struct Paths {
    std::filesystem::path checkpoints;
    std::filesystem::path spool;
    std::filesystem::path references;
    std::filesystem::path kept_updates;
  };
  /// `plan` and `files` must outlive it.
  RunFiles(const RunPlan& plan, Files& files, Paths folders)
      : paths(std::move(folders)),
        spool(files, paths.spool),
        references(files, paths.references, plan.layout.bytes()),
        versions(files, paths.checkpoints, plan.layout),
        kept(plan, files, spool, {paths.kept_updates, paths.checkpoints, paths.references}) {}
  RunFiles(const RunFiles&) = delete;
  RunFiles& operator=(const RunFiles&) = delete;

  const Paths paths;
  Spool spool;
  DeltaReferences references;
  Versions versions;
  KeptUpdates kept;
};

}  // namespace fl::server
