// SPDX-License-Identifier: Apache-2.0
// A trainer that is started anew for each request. It finds the request in a folder, and leaves
// its answer there.
#include "client/learn/process/child_process.hpp"
#include "client/learn/process/trainer_channel.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/limits.hpp"

#include <fmt/format.h>

#include <system_error>

namespace fl {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class OnceChannel final : public TrainerChannel {
 public:
  OnceChannel(const TrainerCommand& command, const TensorFolder& folder)
      : command_(command), folder_(folder) {}

  Result<json> hello(const Patience& patience) override {
    prepare();
    FL_CHECK(run({{"type", "hello"}}, patience));
    FL_TRY(json said, read_json("hello.json"));
    runs_ = true;
    return said;
  }
  bool runs() override { return runs_; }

  InputFiles prepare() override {
    std::error_code failure;  // Seen when a file can't be written.
    fs::remove_all(task_folder(), failure);
    fs::create_directory(task_folder(), failure);
    return {task_folder() / "weights.safetensors", task_folder() / "correction.safetensors"};
  }

  Result<Answer> ask(json request, const Patience& patience) override {
    const std::string type = request.value("type", "");
    FL_CHECK(run(request, patience));
    json message = json::object();
    if (type == "train" || type == "evaluate" || type == "client") {
      FL_TRY(message, read_json("metrics.json"));
    }
    const bool has_update = posix_files().exists(task_folder() / "update.safetensors");
    message["type"] = "done";
    message["wrote"] = has_update ? "update" : "weights";
    const std::string name = type == "train" ? message["wrote"].get<std::string>() : type;
    return Answer{std::move(message), task_folder() / (name + ".safetensors")};
  }

  void end(std::string_view /*reason*/) override {}

 private:
  [[nodiscard]] fs::path task_folder() const { return folder_.tensors() / "task"; }

  Result<void> run(const json& request, const Patience& patience) {
    const std::string text = json_text(request, 1);
    FL_TRY(const auto file, posix_files().open(task_folder() / "task.json", OpenMode::truncate));
    FL_CHECK(file->write_at(0, bytes_of(std::string_view(text))));
    FL_TRY(const auto child, ChildProcess::start({.command = command_.once,
                                                  .variables = command_.variables,
                                                  .folder = task_folder()}));
    while (!child->wait(Clock::now() + limits::trainer_look)) {
      if (patience.stop.stop_requested()) {
        child->end();
        return Error(Errc::cancelled, "stopped");
      }
      if (Clock::now() - child->printed_at() >= patience.silence) {
        child->end();
        return Error(Errc::deadline,
                     fmt::format("the trainer printed nothing for {:.0f} s during '{}' "
                                 "(--trainer-timeout); it is ended",
                                 seconds(patience.silence), request.value("type", "")));
      }
    }
    if (child->has_succeeded()) return {};
    return Error(Errc::invalid_input, fmt::format("the trainer ended during '{}': {}",
                                                  request.value("type", ""), child->ending()));
  }

  [[nodiscard]] Result<json> read_json(const char* name) const {
    auto text = posix_files().read_all(task_folder() / name, limits::trainer_message_bytes_max);
    if (!text) {
      return Error(Errc::invalid_input,
                   fmt::format("the trainer left no {}: {}", name, text.error().message()));
    }
    json value = parse_json(*text);
    if (value.is_object()) return value;
    return Error(Errc::invalid_input, fmt::format("the trainer's {} is not a JSON object: {}", name,
                                                  text->substr(0, 100)));
  }

  const TrainerCommand command_;
  const TensorFolder& folder_;
  bool runs_ = false;
};

}  // namespace

std::unique_ptr<TrainerChannel> make_once_channel(const TrainerCommand& command,
                                                  const TensorFolder& folder) {
  return std::make_unique<OnceChannel>(command, folder);
}

}  // namespace fl
