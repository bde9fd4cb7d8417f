// SPDX-License-Identifier: Apache-2.0
// Requests: what the server has asked of this client and is not done yet: the newest offer of a
// task, and versions to evaluate. On the agent's strand.
#pragma once

#include "proto/wire.pb.h"
#include "shared/base/error.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace fl::client {

class Requests {
 public:
  /// The newest offer. It replaces the one before, which the server has given up.
  [[nodiscard]] const std::optional<wire::Offer>& offer() const { return offer_; }
  /// Completes an offer of this session with the digest of the run's initial model, which only the
  /// first one has. Errors: protocol, if one of its texts is too long.
  [[nodiscard]] Result<void> complete(wire::Offer& offer);
  void keep(wire::Offer offer) { offer_ = std::move(offer); }
  void forget_offer(std::int64_t task);

  /// The oldest version that is to be evaluated. There must be one.
  [[nodiscard]] const wire::Evaluate& evaluation() const {
    FL_ASSERT(has_evaluation());
    return evaluations_.front();
  }
  [[nodiscard]] bool has_evaluation() const { return !evaluations_.empty(); }
  /// Adds a version, unless it is asked again, as after a reconnection. Of more than
  /// limits::evaluations_asked_max the oldest is dropped.
  void add(const wire::Evaluate& evaluation);
  void drop_evaluation() {
    FL_ASSERT(has_evaluation());
    evaluations_.pop_front();
  }

  /// The server no longer has this version. It will send newer requests.
  void forget_version(std::uint32_t version);
  /// Another run begins.
  void clear();

 private:
  std::optional<wire::Offer> offer_;
  std::string run_initial_;  // wire::Offer::initial_digest of this run, when known.
  std::deque<wire::Evaluate> evaluations_;
};

/// Errors: protocol, if a text of the server's is longer than bytes_max. `what` is its name.
[[nodiscard]] Result<void> check_length(std::string_view what, std::string_view text,
                                        std::size_t bytes_max);

}  // namespace fl::client
