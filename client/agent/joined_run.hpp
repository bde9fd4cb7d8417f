// SPDX-License-Identifier: Apache-2.0
// JoinedRun: the run that this client takes part in, with what it needs for it: the model's
// trainer, the method, the device that codes updates. It enters the run that a Welcome describes,
// and does the work that the server asks for.
//
// enter() and the questions are called on the agent's strand, train() and evaluate() on the worker
// thread.
#pragma once

#include "client/agent/download.hpp"
#include "client/agent/local_method.hpp"
#include "client/agent/masking.hpp"
#include "client/agent/requests.hpp"
#include "client/agent/worker.hpp"
#include "client/learn/trace.hpp"
#include "client/learn/trainer.hpp"
#include "client/state/client_state.hpp"
#include "client/state/stored_values.hpp"
#include "proto/wire.pb.h"
#include "shared/base/error.hpp"
#include "shared/codec/device/device_coder.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

namespace fl::client {

class JoinedRun {
 public:
  struct Options {
    TrainerFactory factory;
    std::uint64_t parameters_max = 0;  // Larger models are refused.
    TraceFile* trace = nullptr;        // Null: no trace.
  };
  /// The references must outlive it.
  JoinedRun(Options options, Worker& worker, ClientState& state, Download& download,
            Requests& requests, Masking& masking)
      : options_(std::move(options)),
        worker_(worker),
        state_(state),
        download_(download),
        requests_(requests),
        masking_(masking) {}

  /// Waits while the disk is full. Returns false if the client was stopped meanwhile.
  using Pause = std::function<Awaitable<bool>()>;
  /// Gets ready for the run: state, trainer, method, and version 0 where this client can make it.
  /// If it is another run than before, first waits for the end of the job, and forgets that run.
  /// Whether the run's layout is this client's, layout() says.
  /// Errors: cancelled, if the client was stopped; invalid_input, if it can't take part; those of
  /// the factory and the disk.
  Awaitable<Result<void>> enter(const wire::Welcome& welcome, const Pause& pause);
  /// Whether the last enter() failed because the model is not for this client.
  [[nodiscard]] bool lacks_model() const { return model_.empty(); }
  /// The message of a client that is ready. In a masked run it says nothing of its data: each
  /// member weighs the same.
  [[nodiscard]] wire::Ready ready(const wire::Welcome& welcome, bool is_evaluator) const;

  [[nodiscard]] const std::string& key() const { return key_; }
  [[nodiscard]] const std::string& model() const { return model_; }
  /// The method's layout; enter() must have succeeded.
  [[nodiscard]] const RunLayout& layout() const {
    FL_ASSERT(method_);
    return method_->layout();
  }

  /// Trains from a version, codes the update and makes it the state's pending one.
  [[nodiscard]] JobDone train(const wire::Offer& offer, const StoredValues& version,
                              std::stop_token stop);
  [[nodiscard]] JobDone evaluate(std::uint32_t number, const StoredValues& version,
                                 std::stop_token stop);

 private:
  Awaitable<Result<void>> leave_for(std::string run_key, const Pause& pause);
  Awaitable<Result<void>> load_model(std::string model);
  [[nodiscard]] Result<void> check_size(const std::string& model, std::uint64_t parameters) const;
  void make_version_0();
  [[nodiscard]] Result<StoredValues> initial_values();
  [[nodiscard]] Result<void> check_initial(const wire::Offer& offer);
  [[nodiscard]] Error kept_here(const Error& error) const;
  [[nodiscard]] Result<void> train_and_code(const wire::Offer& offer, const StoredValues& version,
                                            std::stop_token stop);
  [[nodiscard]] codec::DeviceCopy device_for(const codec::Codec& codec);

  Options options_;
  Worker& worker_;
  ClientState& state_;
  Download& download_;
  Requests& requests_;
  Masking& masking_;
  std::string key_;
  std::string model_;  // Empty: no trainer is there.
  std::uint64_t seed_ = 0;
  std::unique_ptr<Trainer> trainer_;
  std::optional<codec::DeviceCoder> coder_;  // The coder on the trainer's device, made when needed.
  std::optional<LocalMethod> method_;
  std::optional<Digest> initial_digest_;  // The digest of version 0 as this client makes it.
};

}  // namespace fl::client
