// SPDX-License-Identifier: Apache-2.0
// A trainer that runs for long and answers through a Unix socket, one JSON object a line.
#include "client/learn/process/child_process.hpp"
#include "client/learn/process/json_line.hpp"
#include "client/learn/process/trainer_channel.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <system_error>

namespace fl {

namespace {

using nlohmann::json;

constexpr std::string_view variable_name = "TRIBUTARY_SOCKET";

class SocketChannel final : public TrainerChannel {
 public:
  SocketChannel(const TrainerCommand& command, const TensorFolder& folder,
                std::filesystem::path path, UnixListener listener)
      : command_(command),
        folder_(folder),
        path_(std::move(path)),
        listener_(std::move(listener)) {}
  ~SocketChannel() override { end(""); }

  Result<json> hello(const Patience& patience) override {
    if (child_ && child_->has_ended()) log_warn("the trainer ended: {}", child_->ending());
    drop();
    if (!command_.command.empty()) {
      auto variables = command_.variables;
      variables.emplace_back(variable_name, path_.string());
      FL_TRY(child_, ChildProcess::start(
                         {.command = command_.command, .variables = variables, .folder = {}}));
    } else {
      log_info("waiting for a trainer at {}", path_.string());
    }
    auto said = connect_and_read(patience);
    if (!said) drop();
    return said;
  }

  bool runs() override { return line_ && !(child_ && child_->has_ended()); }

  InputFiles prepare() override {
    InputFiles files{folder_.tensors() / "weights.safetensors",
                     folder_.tensors() / "correction.safetensors"};
    keep_only_file(files.weights);
    keep_only_file(files.correction);
    return files;
  }

  Result<Answer> ask(json request, const Patience& patience) override {
    const auto out = folder_.tensors() / "out.safetensors";
    keep_only_file(out);
    FL_CHECK(spoil(out));
    const std::uint64_t id = ++last_id_;
    request["id"] = id;
    request["out"] = out.string();
    auto answer = exchange(request, id, patience);
    if (answer) return Answer{std::move(*answer), out};
    if (answer.error().code() == Errc::cancelled && cancel(id)) return answer.error();
    drop();
    return answer.error();
  }

  void end(std::string_view reason) override {
    json bye{{"type", "bye"}};
    if (!reason.empty()) bye["reason"] = reason;
    if (line_ && send_json(*line_, bye, Clock::now() + limits::trainer_grace) && child_)
        [[maybe_unused]]
      const bool ended = child_->wait(Clock::now() + limits::trainer_grace);
    drop();
  }

 private:
  /// Removes what the program has put in a file's place: a link, a pipe.
  static void keep_only_file(const std::filesystem::path& path) {
    std::error_code failure;  // Seen when the file can't be written.
    const auto type = std::filesystem::symlink_status(path, failure).type();
    if (type != std::filesystem::file_type::regular) std::filesystem::remove_all(path, failure);
  }

  /// A result that the program did not write must not be taken for one that it did. The file stays
  /// as large as it is, so that its memory is used again.
  static Result<void> spoil(const std::filesystem::path& path) {
    FL_TRY(const auto file, posix_files().open(path, OpenMode::create));
    FL_TRY(const std::uint64_t bytes, file->size());
    if (bytes < 8) return {};
    constexpr std::array<std::byte, 8> nothing{};
    return file->write_at(0, nothing);
  }

  void drop() {
    line_.reset();
    if (child_) child_->end();
    child_.reset();
  }

  /// In words: we can't end a program that somebody else has started.
  [[nodiscard]] std::string_view what_is_ended() const { return child_ ? "it" : "its connection"; }

  /// The error for a program that has gone. It says how it ended, if it does so soon.
  Error gone(std::string_view when) {
    if (!child_) return {Errc::invalid_input, fmt::format("the trainer has gone {}", when)};
    if (!child_->wait(Clock::now() + limits::trainer_gone_wait))
      return {Errc::invalid_input, fmt::format("the trainer closed its socket {}", when)};
    return {Errc::invalid_input, fmt::format("the trainer ended {}: {}", when, child_->ending())};
  }

  Result<json> connect_and_read(const Patience& patience) {
    const TimePoint until = Clock::now() + patience.silence;
    while (!line_) {
      if (patience.stop.stop_requested()) return Error(Errc::cancelled, "stopped");
      if (child_ && child_->has_ended()) return gone("before it said hello");
      if (Clock::now() >= until) {
        return Error(Errc::deadline, fmt::format("the trainer did not connect within {:.0f} s",
                                                 seconds(patience.silence)));
      }
      FL_TRY(line_, listener_.accept(limits::trainer_look));
    }
    FL_TRY(json message, read(patience, "before it said hello"));
    if (member_text(message, "type") == "hello") return message;
    if (member_text(message, "type") == "error") {
      return Error(Errc::invalid_input,
                   fmt::format("the trainer can't begin: {}", member_text(message, "reason")));
    }
    return Error(Errc::invalid_input, fmt::format("the trainer's first message is not hello: {}",
                                                  json_text(message).substr(0, 100)));
  }

  /// The next message.
  Result<json> read(const Patience& patience, std::string_view when) {
    const TimePoint until = Clock::now() + patience.silence;
    for (;;) {
      if (patience.stop.stop_requested()) return Error(Errc::cancelled, "stopped");
      auto message = receive_json(*line_, limits::trainer_look);
      if (!message && message.error().code() == Errc::unavailable) return gone(when);
      if (!message) return message.error();
      if (*message) return std::move(**message);
      if (Clock::now() >= until) {
        return Error(Errc::deadline,
                     fmt::format("the trainer sent no message for {:.0f} s {} (--trainer-timeout); "
                                 "{} is ended",
                                 seconds(patience.silence), when, what_is_ended()));
      }
    }
  }

  Result<json> exchange(const json& request, std::uint64_t id, const Patience& patience) {
    const std::string when = fmt::format("during '{}'", member_text(request, "type"));
    if (!send_json(*line_, request, Clock::now() + patience.silence)) return gone(when);
    for (;;) {
      FL_TRY(json message, read(patience, when));
      const std::string type = member_text(message, "type");
      const auto found = message.find("id");
      const bool is_of_this = found != message.end() && *found == id;
      if (type == "progress" || !is_of_this) continue;  // Or an answer to a cancelled request.
      if (type == "done" || type == "error") return message;
      return Error(Errc::invalid_input, fmt::format("the trainer sent a message of type '{}' {}",
                                                    type.substr(0, 100), when));
    }
  }

  /// Returns whether the program has ended the request and can be asked again.
  bool cancel(std::uint64_t id) {
    const TimePoint until = Clock::now() + limits::trainer_grace;
    if (!send_json(*line_, {{"type", "cancel"}, {"id", id}}, until)) return false;
    while (Clock::now() < until) {
      const auto message = receive_json(*line_, limits::trainer_look);
      if (!message && message.error().code() == Errc::invalid_input) continue;
      if (!message) return false;
      if (!*message) continue;
      const json& said = **message;
      const bool is_end =
          said.contains("id") && said["id"] == id && member_text(said, "type") != "progress";
      if (is_end) return true;
    }
    log_warn("the trainer did not answer 'cancel' within {} s; {} is ended",
             std::chrono::seconds(limits::trainer_grace).count(), what_is_ended());
    return false;
  }

  const TrainerCommand command_;
  const TensorFolder& folder_;
  const std::filesystem::path path_;
  UnixListener listener_;
  std::unique_ptr<ChildProcess> child_;  // Null if somebody else starts the program.
  std::unique_ptr<SocketLine> line_;
  std::uint64_t last_id_ = 0;
};

}  // namespace

Result<std::unique_ptr<TrainerChannel>> make_socket_channel(const TrainerCommand& command,
                                                            const TensorFolder& folder) {
  const auto path = command.socket.empty() ? folder.path() / "socket" : command.socket;
  FL_TRY(auto listener, UnixListener::make(path));
  return std::unique_ptr<TrainerChannel>(
      std::make_unique<SocketChannel>(command, folder, path, std::move(listener)));
}

}  // namespace fl
