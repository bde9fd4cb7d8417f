// SPDX-License-Identifier: Apache-2.0
// Trainings of ranks that are processes, and what each takes of memory and sends. The model's
// vectors lie in files, as with an agent.
#pragma once

#include "tests/client/site/rank_memory.hpp"
#include "tests/client/site/rank_processes.hpp"
#include "tests/client/site/trained_ranks.hpp"
#include "tests/support/temporary_folder.hpp"

#include "client/site/shared_values.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace fl::test {

/// Of a rank, in MB above what its process takes before.
struct RankMemory {
  float making = 0;          // The most while its trainer is made, before any training.
  float after_forward = 0;   // The most where a forward pass has ended.
  float most = 0;            // The most in a training.
  float after = 0;           // After it.
  float sent_megabytes = 0;  // What it has sent, by formula (Parallel::gradient_bytes()).
  float steps = 0;
  float all_megabytes = 0;  // What it has sent for all purposes, by formula (Ranks::bytes_sent()).
};

/// Trains twice, as many steps as the training says, and measures the second time, when libtorch
/// has what it takes once. The ranks, in their order. Throws if one fails.
inline std::vector<RankMemory> measure_training(int size, const Training& training) {
  const TemporaryFolder folder;
  const RankProcesses processes(
      size,
      [&](Ranks& ranks, const Ranks::Store&) {
        RankMemory found;
        MemoryNotes most;
        MemoryNotes after_forward;
        const float before = own_megabytes();
        const float resident = status_megabytes("VmRSS:");
        begin_peak();
        const auto together = enter_parallel(ranks, training, [&most] { most.note(); });
        WatchedSync watched(*together, after_forward);
        const auto trainer = make_ranks_trainer(training, &watched);
        found.making = status_megabytes("VmHWM:") - resident;
        const std::size_t elements = trainer->layout().elements();
        const auto name = [&](const char* what) {
          return folder.path() / (what + std::to_string(ranks.rank()));
        };
        const auto weights = SharedValues::make(name("weights"), elements).value();
        const auto update = SharedValues::make(name("update"), elements).value();
        for (int turn = 0; turn < 2; ++turn) {
          const std::uint64_t sent = together->gradient_bytes();
          const std::uint64_t all = ranks.bytes_sent();
          const auto report =
              trainer->train(weights.values(), training.settings, {}, update.values(), {}).value();
          found.sent_megabytes = static_cast<float>(together->gradient_bytes() - sent) / 1e6F;
          found.all_megabytes = static_cast<float>(ranks.bytes_sent() - all) / 1e6F;
          found.steps = static_cast<float>(report.steps);
        }
        found.after = own_megabytes() - before;
        found.after_forward = after_forward.most();
        found.most = most.most();
        return std::vector<float>{found.making,       found.after_forward,  found.most,
                                  found.after,        found.sent_megabytes, found.steps,
                                  found.all_megabytes};
      },
      loopback(std::chrono::seconds(60)));
  std::vector<RankMemory> all;
  for (int rank = 0; rank < size; ++rank) {
    const std::vector<float> told = processes.told(rank);
    if (told.size() != 7) throw std::runtime_error("rank " + std::to_string(rank) + " failed");
    all.push_back({told[0], told[1], told[2], told[3], told[4], told[5], told[6]});
  }
  return all;
}

}  // namespace fl::test
