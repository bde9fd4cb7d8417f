// SPDX-License-Identifier: Apache-2.0
// Agent: the client's main loop, which connects, does the tasks that the server offers, and
// reconnects. It is one coroutine on one strand. The agent uses the server through Link, the model
// through Trainer and the disk through Files, so fl-sim and the tests run this same code.
//
// The agent decides what to do next (advance()); its parts do it, and each owns its state:
//   Conversation   the connection, the handshake, renewal
//   Requests       what the server has asked for
//   Download       the version that is here or on its way
//   JoinedRun      the run's trainer and method: training and evaluating
//   Upload         the update that waits for its verdict
//   Masking        that update in a masked run: what is said before and after its masked words
//   Worker         the worker thread, on which all of them compute and use the disk
#pragma once

#include "client/agent/connector.hpp"
#include "client/agent/conversation.hpp"
#include "client/agent/download.hpp"
#include "client/agent/events.hpp"
#include "client/agent/joined_run.hpp"
#include "client/agent/masking.hpp"
#include "client/agent/model_cache.hpp"
#include "client/agent/patience.hpp"
#include "client/agent/requests.hpp"
#include "client/agent/upload.hpp"
#include "client/agent/worker.hpp"
#include "client/learn/trace.hpp"
#include "client/learn/trainer.hpp"
#include "client/state/client_state.hpp"
#include "shared/base/async/offload.hpp"
#include "shared/base/async/task_group.hpp"
#include "shared/base/limits.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace fl::client {

class Agent {
 public:
  struct Options {
    bool evaluator = false;  // Evaluates every version and trains none.
    bool stay = false;       // Waits for the next run when one is over.
    std::string model;       // The only model that it trains; "": any.
    std::string data;        // The shape of its data, in words (wire::Hello); "": not known.
    std::string tensors;     // The digest of the only tensors that it trains (the same); "": any.
    std::uint64_t parameters_max = limits::client_parameters_max;  // Larger models are refused.
    int threads = 1;                // Threads that encode an update; 0: one per core.
    std::uint64_t jitter_seed = 0;  // Spreads the reconnections of many clients over time.
    ModelCache* models = nullptr;   // Shared with other agents of the process; null: its own.
    TraceFile* trace = nullptr;     // The agent writes its work there; null: no trace.
    Patience patience;
    /// Takes part in masked runs, and in no others; none: in those in the clear only. An evaluator
    /// takes part in both.
    std::optional<SecureOptions> secure;
  };
  enum class Outcome { finished, stopped, gave_up };

  /// All arguments that are references or pointers must outlive the agent. `keeper` may be null.
  /// The agent gives `offload` one piece of work at a time. `folder` is the client's state folder.
  /// With `options.threads` other than 1, `files` must be usable from any thread.
  Agent(net::any_io_executor strand, Connector& connector, IdentityKeeper* keeper, Files& files,
        std::filesystem::path folder, TrainerFactory factory, Offload& offload, Options options);
  ~Agent();

  /// Runs until the run ends (with `stay`: never), until stop() is called, until the server can't
  /// be reached for longer than the patience lasts, or until a permanent error: the server rejects
  /// this client, the model is unknown, the data can't be read, the disk fails.
  Awaitable<Result<Outcome>> run();
  /// Ends run() soon. On the agent's strand.
  void stop();

 private:
  struct MessageRow;

  Awaitable<Result<Outcome>> reconnect();
  Awaitable<void> wait(TimePoint until);
  /// Serves one connection until the run ends, stop() is called, or an error ends the connection.
  Awaitable<Result<Outcome>> serve(std::shared_ptr<Link> link);
  Awaitable<Result<void>> shake_hands();
  Awaitable<Result<Outcome>> answer_requests();
  Awaitable<Result<void>> advance();
  Awaitable<Result<void>> fetch(std::uint32_t version);
  Awaitable<Result<void>> handle(Message message);
  // One for each row of the messages. handle() keeps the message until they have returned.
  Awaitable<Result<void>> take_offer(Message& message);
  Awaitable<Result<void>> take_evaluate(Message& message);
  Awaitable<Result<void>> begin_download(Message& message);
  Awaitable<Result<void>> take_chunk(Message& message);
  Awaitable<Result<void>> resume_upload(Message& message);
  Awaitable<Result<void>> take_verdict(Message& message);
  Awaitable<Result<void>> take_masking(Message& message);
  Awaitable<Result<void>> take_failure(Message& message);
  Awaitable<Result<void>> take_renewal(Message& message);
  Awaitable<Result<void>> take_notice(Message& message);
  Awaitable<Result<void>> finish_job(JobDone done);
  Awaitable<Result<void>> report_failure(const JobDone& done);
  Awaitable<void> leave_run();
  Awaitable<void> export_own_tensors();

  Connector& connector_;
  Options options_;
  bool stopping_ = false;
  Signal stopped_;
  TaskGroup group_;
  AgentEvents events_;
  Worker worker_;
  ClientState state_;  // Used by the worker while a job runs.
  Conversation conversation_;
  Requests requests_;
  Download download_;
  Upload upload_;
  Masking masking_;
  JoinedRun run_;
};

}  // namespace fl::client
