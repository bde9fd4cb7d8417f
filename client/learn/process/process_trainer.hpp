// SPDX-License-Identifier: Apache-2.0
// A Trainer that is a program of the user's (docs/design/trainer-protocol.md). The program outlives
// the trainers: it is started once, and again if it fails.
#pragma once

#include "client/learn/process/trainer_channel.hpp"
#include "client/learn/process/trainer_messages.hpp"
#include "client/learn/trainer.hpp"
#include "shared/base/async/mutex.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fl {

/// Counts failures in a row, by what was asked. Programs that do the same work share one. Any
/// thread.
class TrainerFailures {
 public:
  /// Returns the highest count of these, with this failure.
  int add(const std::vector<std::string>& asked);
  void forget(const std::vector<std::string>& asked);
  [[nodiscard]] int worst() const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, int> counts_ FL_GUARDED_BY(mutex_);
};

/// One thread at a time; the calls block.
class TrainerProgram {
 public:
  /// Starts the program and hears its hello. It is tried command.retries times. `state` is the
  /// client's state folder. `failures` is null unless programs share one. Errors: those of the last
  /// attempt; conflict: the hello is wrong, which another attempt would not change; cancelled.
  [[nodiscard]] static Result<std::shared_ptr<TrainerProgram>> start(
      const TrainerCommand& command, const std::filesystem::path& state, std::stop_token stop,
      std::shared_ptr<TrainerFailures> failures = nullptr);
  ~TrainerProgram();

  [[nodiscard]] const TrainerHello& hello() const { return hello_; }
  /// Where the next request finds its tensors. Starts the program if it does not run, after a pause
  /// that grows with each failure.
  [[nodiscard]] Result<TrainerChannel::InputFiles> prepare(const std::stop_token& stop);
  /// Sends the request and returns the answer. Errors: cancelled; invalid_input: it has failed,
  /// with its reason. After TrainerCommand::retries failures of this type of request, or of this
  /// type for one client, without an answer that was right in between, the error is `internal`,
  /// which ends the client.
  [[nodiscard]] Result<TrainerChannel::Answer> ask(nlohmann::json request, std::stop_token stop);
  /// Counts what was wrong with the last answer as a failure of the program, as ask() does.
  [[nodiscard]] Error failed(const Error& error);
  /// Call when the last answer was right.
  void succeeded() { failures_->forget(asked_); }
  /// Asks the program to end.
  void end() { channel_->end(""); }

 private:
  TrainerProgram(TrainerCommand command, TensorFolder folder,
                 std::shared_ptr<TrainerFailures> failures);
  [[nodiscard]] Result<void> start_anew(const std::stop_token& stop);
  /// Errors: those of TrainerChannel::hello(); conflict: the program's hello is refused for good.
  [[nodiscard]] Result<TrainerHello> say_hello(const std::stop_token& stop);
  /// Ends the program, which hears the reason, and returns the error that ends the client.
  [[nodiscard]] Error refused(const std::string& reason);

  const TrainerCommand command_;
  TensorFolder folder_;
  std::unique_ptr<TrainerChannel> channel_;
  TrainerHello hello_;
  std::vector<std::string> asked_;  // What the last request asked: its type, and that for whom.
  std::shared_ptr<TrainerFailures> failures_;
};

/// One of the clients that a program plays (fl-sim).
struct PlayedClient {
  std::uint32_t number = 0;  // From 0 to `clients` - 1.
  std::uint32_t clients = 1;
  std::filesystem::path state;  // The folder of what it keeps.
  ExampleCounts examples = {};
};

/// Asks a program how many examples a client has; client.examples is ignored.
[[nodiscard]] Result<ExampleCounts> ask_for_examples(TrainerProgram& program,
                                                     const PlayedClient& client,
                                                     std::stop_token stop);

/// `model` is the run's model. `client`: the one that is played; nothing if the program is a client
/// itself. Errors: invalid_input if the program can't train it.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_process_trainer(
    std::shared_ptr<TrainerProgram> program, std::string model,
    std::optional<PlayedClient> client = {});

}  // namespace fl
