// SPDX-License-Identifier: Apache-2.0
// TrainerChannel: sends requests to a trainer that is a program of the user's, and gets its answers
// (docs/design/trainer-protocol.md). One thread at a time; the calls block.
#pragma once

#include "client/learn/process/tensor_folder.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/error.hpp"
#include "shared/base/json.hpp"

#include <filesystem>
#include <memory>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fl {

/// How the user's program is run, as on the command line. One of `command`, `once` and `socket` is
/// set.
struct TrainerCommand {
  std::string command;           // Runs as long as the client, and answers through a socket.
  std::string once;              // Runs anew for each request, and answers by files.
  std::filesystem::path socket;  // We listen here for a program that somebody else starts.
  std::vector<std::pair<std::string, std::string>> variables;  // Added to its environment.
  double silence_s = 600;  // A program that shows no life for so long during a request is ended.
  int retries = 3;         // After this many failures in a row the client ends.
  int programs = 1;        // How many of them share this machine's memory.

  [[nodiscard]] bool is_set() const { return !command.empty() || !once.empty() || !socket.empty(); }
};

class TrainerChannel {
 public:
  /// When an answer is not waited for any longer.
  struct Patience {
    std::stop_token stop;
    Duration silence{};  // How long the program may show no life.
  };
  /// Where the program finds the tensors of the next request.
  struct InputFiles {
    std::filesystem::path weights;
    std::filesystem::path correction;
  };
  struct Answer {
    nlohmann::json message;        // The type is "done", or "error" with a reason.
    std::filesystem::path result;  // The file that it has written, if it was to write one.
  };
  virtual ~TrainerChannel() = default;

  /// Starts the program if it does not run, and returns its hello. Errors: those of ask().
  [[nodiscard]] virtual Result<nlohmann::json> hello(const Patience& patience) = 0;
  /// Whether the program has said hello and can be asked.
  [[nodiscard]] virtual bool runs() = 0;
  /// Called before each ask(), and before the files are written.
  [[nodiscard]] virtual InputFiles prepare() = 0;
  /// Sends the request, with "id" and "out" added, and waits for the answer. Errors: cancelled;
  /// invalid_input: the program has ended, or says what it may not; deadline: it showed no life.
  /// After an error it may have been ended: see runs().
  [[nodiscard]] virtual Result<Answer> ask(nlohmann::json request, const Patience& patience) = 0;
  /// Asks the program to end, and kills it after limits::trainer_grace. `reason`: why it is
  /// refused;
  /// "" where it is only not needed any more.
  virtual void end(std::string_view reason) = 0;
};

/// The program runs as long as the channel, or is started by somebody else. `folder` must outlive
/// it. Errors: those of making the socket.
[[nodiscard]] Result<std::unique_ptr<TrainerChannel>> make_socket_channel(
    const TrainerCommand& command, const TensorFolder& folder);
/// The program runs once for each request.
[[nodiscard]] std::unique_ptr<TrainerChannel> make_once_channel(const TrainerCommand& command,
                                                                const TensorFolder& folder);

}  // namespace fl
