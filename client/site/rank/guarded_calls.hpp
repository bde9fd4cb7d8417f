// SPDX-License-Identifier: Apache-2.0
// GuardedCalls: how calls on the backend of a group of ranks are waited for, and what becomes of
// the group when one of them fails or the agent says that a rank is lost.
#pragma once

#include "client/learn/torch/step_sync.hpp"
#include "client/site/abort_switch.hpp"

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace fl::site {

/// A collective that failed or took too long: a rank has died or hangs, or the network is cut. It
/// is an exception because it travels out of loss.backward(), through code of libtorch. The group
/// is of no use afterwards: make a new one from the ranks that are left.
class RankFailure : public SyncFailure {
 public:
  RankFailure(std::string operation, int rank, const std::string& reason)
      : SyncFailure(operation + (rank < 0 ? "" : " with rank " + std::to_string(rank)) +
                    " failed: " + reason),
        operation_(std::move(operation)),
        rank_(rank) {}
  [[nodiscard]] const std::string& operation() const { return operation_; }
  /// The rank that did not answer; -1 if it is not known. Collectives of Gloo do not name it.
  [[nodiscard]] int rank() const { return rank_; }

 private:
  std::string operation_;
  int rank_;
};

/// The error's text; without the stack of functions that libtorch's own errors have at the end.
[[nodiscard]] std::string reason_of(const std::exception& error);

/// One thread at a time.
class GuardedCalls {
 public:
  /// Each wait ends within `timeout`. `abort` ends the calls from any thread; null: nobody does.
  GuardedCalls(c10::intrusive_ptr<c10d::Backend> backend, std::chrono::milliseconds timeout,
               std::shared_ptr<AbortSwitch> abort);

  /// Calls body(). An exception of it aborts the group and becomes a RankFailure, and so do all
  /// calls after it. `peer`: the rank that the call is with; -1: all.
  void run(const char* operation, int peer, const std::function<void()>& body);
  /// Waits for the end of work, `times` as long as the timeout at most. Throws runtime_error.
  void await(c10d::Work& work, int times = 1) const;
  /// Throws runtime_error if the agent has said that a rank is lost. What a call has received is
  /// worth nothing then: the kernels of an aborted communicator end as if they had done their work.
  void check_aborted() const;

 private:
  void poll(c10d::Work& work, std::chrono::milliseconds timeout) const;
  void abort();

  const c10::intrusive_ptr<c10d::Backend> backend_;
  const std::chrono::milliseconds timeout_;
  const bool polls_;  // Waits by looking at the work.
  const std::shared_ptr<AbortSwitch> abort_;
  bool has_failed_ = false;
  std::optional<AbortSwitch::Hold> hold_;  // The last member: it uses the others.
};

}  // namespace fl::site
