// SPDX-License-Identifier: Apache-2.0
// When the connection of a virtual client breaks, in a run that simulates drop-outs. One strand at
// a time.
#pragma once

#include "proto/wire.pb.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace fl::sim {

class DropOuts {
 public:
  struct Options {
    double chance = 0;    // How likely a client drops out of a task: from 0 to 1.
    double seconds = 10;  // How long it is away then.
  };
  /// `seed`: of the run. A client and a task always draw the same. `is_masked`: whether the run has
  /// the messages of secure aggregation.
  DropOuts(const Options& options, std::uint64_t seed, std::string client, bool is_masked)
      : options_(options), seed_(seed), client_(std::move(client)), is_masked_(is_masked) {}

  /// Whether the connection breaks in place of this message of the client's: with the chance of the
  /// options once in each task, at any of the messages that follow its training.
  [[nodiscard]] bool breaks_at(const wire::Header& message);

 private:
  [[nodiscard]] std::optional<wire::Header::KindCase> drawn_for(std::int64_t task) const;

  Options options_;
  std::uint64_t seed_;
  std::string client_;
  bool is_masked_;
  std::int64_t uploaded_ = 0;  // The task of the chunks that follow.
  std::int64_t dropped_ = 0;   // The last task that it has dropped out of.
};

}  // namespace fl::sim
