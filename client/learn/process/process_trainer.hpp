// SPDX-License-Identifier: Apache-2.0
// A Trainer that is a program of the user's (docs/design/trainer-protocol.md). The program outlives
// the trainers: it is started once, and again if it fails.
#pragma once

#include "client/learn/process/trainer_channel.hpp"
#include "client/learn/process/trainer_messages.hpp"
#include "client/learn/trainer.hpp"

#include <map>
#include <memory>
#include <string>

namespace fl {

/// One thread at a time; the calls block.
class TrainerProgram {
 public:
  /// Starts the program and hears its hello. It is tried command.retries times. `state` is the
  /// client's state folder. Errors: those of the last attempt; cancelled.
  [[nodiscard]] static Result<std::shared_ptr<TrainerProgram>> start(
      const TrainerCommand& command, const std::filesystem::path& state, std::stop_token stop);
  ~TrainerProgram();

  [[nodiscard]] const TrainerHello& hello() const { return hello_; }
  /// Where the next request finds its tensors. Starts the program if it does not run, after a pause
  /// that grows with each failure.
  [[nodiscard]] Result<TrainerChannel::InputFiles> prepare(const std::stop_token& stop);
  /// Sends the request and returns the answer. `silence_s`: how long the program may show no life,
  /// if shorter than the command says; 0: no shorter. Errors: cancelled; invalid_input: it has
  /// failed, with its reason. After TrainerCommand::retries failures of this type of request,
  /// without an answer that was right in between, the error is `internal`, which ends the client.
  [[nodiscard]] Result<TrainerChannel::Answer> ask(nlohmann::json request, std::stop_token stop,
                                                   double silence_s = 0);
  /// Counts what was wrong with the last answer as a failure of the program, as ask() does.
  [[nodiscard]] Error failed(const Error& error);
  /// Call when the last answer was right.
  void succeeded() { failures_.erase(type_); }
  /// Asks the program to end.
  void end() { channel_->end(); }

 private:
  TrainerProgram(TrainerCommand command, TensorFolder folder);
  [[nodiscard]] int worst_failures() const;
  [[nodiscard]] Result<void> start_anew(const std::stop_token& stop);
  [[nodiscard]] Result<TrainerHello> say_hello(const std::stop_token& stop);

  const TrainerCommand command_;
  TensorFolder folder_;
  std::unique_ptr<TrainerChannel> channel_;
  TrainerHello hello_;
  std::string type_ = "hello";           // The last request's type.
  std::map<std::string, int> failures_;  // In a row, by type of request.
};

/// `model` is the run's model. Errors: invalid_input if the program can't train it.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_process_trainer(
    std::shared_ptr<TrainerProgram> program, std::string model);

}  // namespace fl
