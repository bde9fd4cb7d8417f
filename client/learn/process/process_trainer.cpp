// SPDX-License-Identifier: Apache-2.0
#include "client/learn/process/process_trainer.hpp"

#include "client/learn/blockwise_trainer.hpp"
#include "kernels/kernels.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace fl {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// Before the program is started again after so many failures.
Duration pause_after(int failures) {
  Duration pause = limits::trainer_pause_min;
  for (int i = 1; i < failures && pause < limits::trainer_pause_max; ++i) pause *= 2;
  return std::min<Duration>(pause, limits::trainer_pause_max);
}

/// Returns false if a stop was requested meanwhile.
bool sleep_for_or_stop(Duration pause, const std::stop_token& stop) {
  const TimePoint until = Clock::now() + pause;
  Mutex mutex;  // It guards nothing: the wait needs one.
  StoppableCondition stopped;
  const MutexLock lock(mutex);
  while (Clock::now() < until && !stop.stop_requested()) stopped.wait_until(mutex, stop, until);
  return !stop.stop_requested();
}

Result<void> write_tensors(const fs::path& path, const Layout& layout, const ValueSource& values,
                           std::span<const ElementType> types) {
  std::vector<float> room;
  FL_TRY(const auto whole, whole_of(values, room));
  FL_TRY(const auto file, posix_files().open(path, OpenMode::create));
  return write_safetensors(*file, layout, whole, types);
}

Result<void> read_pieces(const fs::path& path, const Layout& layout, const WriteValues& take) {
  FL_TRY(const auto file, posix_files().open(path, OpenMode::read));
  return read_safetensors_pieces(*file, layout, take);
}

/// Says in a request which client it is for.
void add_client(json& request, const PlayedClient& client) {
  request["client"] = client.number;
  request["clients"] = client.clients;
  request["state"] = client.state.string();
}

/// The tensors of a trainer, in the order in which this client has their values.
struct Arrangement {
  Layout layout;  // The tensors that are trained.
  Layout files;   // The tensors in the program's files.
  std::vector<ElementType> types;
};

/// The program lists its tensors in any order. A built-in model has an order of its own, in which
/// they are taken if they are that model's by name and shape. If not, the server names those that
/// differ.
Arrangement arrange(const TrainerHello& hello, std::string_view model) {
  Arrangement own{hello.layout, hello.files, hello.types};
  const auto builtin = builtin_layout(model);
  const auto& told = hello.files.tensors();
  if (!builtin || hello.layout.tensors().size() != told.size() ||
      builtin->tensors().size() != told.size())
    return own;
  std::map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < told.size(); ++i) places[told[i].name] = i;
  Arrangement arranged{*builtin, *builtin, {}};
  for (const auto& tensor : builtin->tensors()) {
    const auto place = places.find(tensor.name);
    if (place == places.end() || told[place->second].shape != tensor.shape) return own;
    arranged.types.push_back(hello.types[place->second]);
  }
  return arranged;
}

class ProcessTrainer final : public BlockwiseTrainer {
 public:
  ProcessTrainer(std::shared_ptr<TrainerProgram> program, std::string model,
                 std::optional<PlayedClient> client)
      : program_(std::move(program)),
        model_(std::move(model)),
        client_(std::move(client)),
        arranged_(arrange(program_->hello(), model_)) {}

  const Layout& layout() const override { return arranged_.layout; }
  std::uint64_t train_examples() const override { return counts().train; }
  std::uint64_t holdout_examples() const override { return counts().holdout; }
  std::span<const MetricKind> metrics() const override { return program_->hello().metrics; }
  Abilities abilities() const override { return program_->hello().abilities; }
  void enter_run(const std::string& run_key) override { run_key_ = run_key; }

  Result<void> make_initial(std::uint64_t seed, ValueSink& out) const override {
    if (!model_.starts_with(custom_prefix))
      return make_builtin_initial_weights(model_, seed, write_to(out));
    if (!abilities().initial)
      return Error(Errc::invalid_input, "the trainer does not support 'initial'");
    return make({{"type", "initial"}, {"seed", seed}}, out, nullptr, {});
  }

  Result<TrainReport> train_blocks(const ValueSource& global, const TrainSettings& settings,
                                   const ValueSource* correction, ValueSink& update,
                                   std::stop_token stop) override {
    FL_ASSERT(global.elements() == layout().elements());
    const TimePoint begin = Clock::now();
    json request{{"type", "train"},
                 {"run", run_key_},
                 {"round", settings.round},
                 {"settings", settings_json(settings)}};
    if (settings.deadline_s > 0) request["seconds_left"] = settings.deadline_s;
    FL_TRY(const auto files, program_->prepare(stop));
    FL_CHECK(write_tensors(files.weights, tensors(), global, types()));
    request["weights"] = files.weights.string();
    if (correction != nullptr) {
      const std::vector<ElementType> fp32(types().size(), ElementType::f32);
      FL_CHECK(write_tensors(files.correction, tensors(), *correction, fp32));
      request["correction"] = files.correction.string();
    }
    FL_TRY(const auto answer, ask(std::move(request), stop));
    const auto told = parse_train_answer(answer.message, train_examples());
    if (!told) return program_->failed(told.error());
    std::vector<float> moved;
    const auto subtract_start = [&](std::uint64_t first,
                                    std::span<const float> values) -> Result<void> {
      FL_CHECK(read_start(global, first, values.size(), moved));
      for (std::size_t i = 0; i < values.size(); ++i) moved[i] = values[i] - moved[i];
      return update.write(first, moved);
    };
    const WriteValues take = told->is_update ? write_to(update) : WriteValues(subtract_start);
    FL_CHECK(read_result(answer.result, fmt::format("round {}: ", settings.round), take));
    if (!std::isfinite(told->report.loss)) {
      return Error(Errc::invalid_input,
                   fmt::format("round {}: the trainer's loss is not finite", settings.round));
    }
    program_->succeeded();
    TrainReport report = told->report;
    report.seconds = seconds(Clock::now() - begin);
    return report;
  }

  Result<void> write_gradient(const ValueSource& weights, const TrainSettings& settings,
                              ValueSink& gradient, std::stop_token stop) override {
    if (!abilities().gradient)
      return Error(Errc::invalid_input, "the trainer does not support 'gradient'");
    return make({{"type", "gradient"}, {"settings", settings_json(settings)}}, gradient, &weights,
                std::move(stop));
  }

  Result<EvalReport> evaluate_blocks(const ValueSource& weights, std::stop_token stop) override {
    if (holdout_examples() == 0) return EvalReport{};
    FL_TRY(const auto files, program_->prepare(stop));
    FL_CHECK(write_tensors(files.weights, tensors(), weights, types()));
    json request{{"type", "evaluate"}, {"weights", files.weights.string()}};
    FL_TRY(const auto answer, ask(std::move(request), stop));
    auto report = parse_eval_answer(answer.message, holdout_examples(), metrics());
    if (!report) return program_->failed(report.error());
    program_->succeeded();
    return report;
  }

 private:
  [[nodiscard]] const ExampleCounts& counts() const {
    return client_ ? client_->examples : program_->hello().examples;
  }
  [[nodiscard]] Result<TrainerChannel::Answer> ask(json request, std::stop_token stop) const {
    if (client_) add_client(request, *client_);
    return program_->ask(std::move(request), std::move(stop));
  }
  [[nodiscard]] const Layout& tensors() const { return arranged_.files; }
  [[nodiscard]] std::span<const ElementType> types() const { return arranged_.types; }

  /// Reads what the program has written, piece by piece, and checks that its values are finite.
  /// Errors: invalid_input, with the tensor that is wrong, or with `where` for a value; those of
  /// `take`.
  [[nodiscard]] Result<void> read_result(const fs::path& path, std::string_view where,
                                         const WriteValues& take) const {
    Result<void> taken = success();
    const auto check = [&](std::uint64_t first, std::span<const float> values) {
      const std::size_t bad = kernels().scan(values.data(), values.size()).first_bad;
      taken = bad == values.size()
                  ? take(first, values)
                  : Error(Errc::invalid_input, fmt::format("{}the trainer's {} is not finite",
                                                           where, layout().describe(first + bad)));
      return taken;
    };
    const auto read = read_pieces(path, tensors(), check);
    if (read || !taken) return taken;
    return program_->failed(
        {Errc::invalid_input,
         fmt::format("the trainer's {}: {}", path.filename().string(), read.error().message())});
  }

  /// A request whose result is a vector. `weights` may be null.
  Result<void> make(json request, ValueSink& out, const ValueSource* weights,
                    std::stop_token stop) const {
    FL_TRY(const auto files, program_->prepare(stop));
    if (weights != nullptr) {
      FL_CHECK(write_tensors(files.weights, tensors(), *weights, types()));
      request["weights"] = files.weights.string();
    }
    FL_TRY(const auto answer, ask(std::move(request), stop));
    FL_CHECK(read_result(answer.result, "", write_to(out)));
    program_->succeeded();
    return {};
  }

  /// The weights that the trainer began from: rounded to the types of its tensors.
  [[nodiscard]] Result<void> read_start(const ValueSource& global, std::uint64_t first,
                                        std::size_t count, std::vector<float>& start) const {
    start.resize(count);
    FL_CHECK(global.read(first, start));
    round_to_types(tensors(), types(), first, start);
    return {};
  }

  std::shared_ptr<TrainerProgram> program_;
  std::string model_;
  std::optional<PlayedClient> client_;
  Arrangement arranged_;
  std::string run_key_;
};

}  // namespace

int TrainerFailures::add(const std::vector<std::string>& asked) {
  const MutexLock lock(mutex_);
  int most = 0;
  for (const auto& what : asked) most = std::max(most, ++counts_[what]);
  return most;
}

void TrainerFailures::forget(const std::vector<std::string>& asked) {
  const MutexLock lock(mutex_);
  for (const auto& what : asked) counts_.erase(what);
}

int TrainerFailures::worst() const {
  const MutexLock lock(mutex_);
  int worst = 0;
  for (const auto& count : counts_) worst = std::max(worst, count.second);
  return worst;
}

TrainerProgram::TrainerProgram(TrainerCommand command, TensorFolder folder,
                               std::shared_ptr<TrainerFailures> failures)
    : command_(std::move(command)), folder_(std::move(folder)), failures_(std::move(failures)) {}

TrainerProgram::~TrainerProgram() = default;

Result<std::shared_ptr<TrainerProgram>> TrainerProgram::start(
    const TrainerCommand& command, const fs::path& state, std::stop_token stop,
    std::shared_ptr<TrainerFailures> failures) {
  FL_TRY(TensorFolder folder, TensorFolder::make(state));
  if (!failures) failures = std::make_shared<TrainerFailures>();
  std::shared_ptr<TrainerProgram> program(
      new TrainerProgram(command, std::move(folder), std::move(failures)));
  if (command.once.empty()) {
    FL_TRY(program->channel_, make_socket_channel(program->command_, program->folder_));
  } else {
    program->channel_ = make_once_channel(program->command_, program->folder_);
  }
  for (;;) {
    auto hello = program->say_hello(stop);
    if (hello) {
      program->hello_ = std::move(*hello);
      program->succeeded();
      break;
    }
    const Errc code = hello.error().code();
    if (code == Errc::cancelled || code == Errc::conflict) return hello.error();
    const Error error = program->failed(hello.error());
    if (error.code() == Errc::internal) return error;
    log_warn("{}; trying again", error.message());
    if (!sleep_for_or_stop(pause_after(program->failures_->worst()), stop))
      return Error(Errc::cancelled, "stopped");
  }
  const TrainerHello& hello = program->hello_;
  if (!hello.left.empty())
    log_info("these tensors stay in the trainer: {}",
             fmt::format("{}", fmt::join(hello.left, ", ")));
  // Weights, correction and result, each in the widest type.
  constexpr std::uint64_t bytes_of_element = 3 * sizeof(double);
  const auto programs = static_cast<std::uint64_t>(command.programs);
  FL_CHECK(program->folder_.make_room(hello.layout.elements() * bytes_of_element * programs));
  return program;
}

Result<TrainerHello> TrainerProgram::say_hello(const std::stop_token& stop) {
  asked_ = {"'hello'"};
  const auto silence = std::chrono::duration<double>(command_.silence_s);
  FL_TRY(const json message,
         channel_->hello({stop, std::chrono::duration_cast<Duration>(silence)}));
  auto hello = parse_hello(message);
  if (!hello) return refused(hello.error().message());
  return hello;
}

Error TrainerProgram::refused(const std::string& reason) {
  channel_->end(reason);
  return {Errc::conflict, reason};
}

Result<void> TrainerProgram::start_anew(const std::stop_token& stop) {
  const int failures = failures_->worst();
  if (failures > 0 && !sleep_for_or_stop(pause_after(failures), stop))
    return Error(Errc::cancelled, "stopped");
  log_info("{}", command_.socket.empty() ? "starting the trainer again"
                                         : "waiting until the trainer connects again");
  FL_TRY(const TrainerHello hello, say_hello(stop));
  const bool is_same = hello.layout.digest() == hello_.layout.digest() &&
                       hello.types == hello_.types && hello.examples == hello_.examples;
  if (is_same) {
    succeeded();
    return {};
  }
  return refused(
      "the trainer has other tensors or another number of examples than before: start this "
      "program again");
}

Result<TrainerChannel::InputFiles> TrainerProgram::prepare(const std::stop_token& stop) {
  if (!channel_->runs()) {
    if (auto started = start_anew(stop); !started) {
      const Errc code = started.error().code();
      if (code == Errc::cancelled || code == Errc::conflict) return started.error();
      return failed(started.error());
    }
  }
  return channel_->prepare();
}

Result<TrainerChannel::Answer> TrainerProgram::ask(json request, std::stop_token stop) {
  const Duration silence = duration_of(command_.silence_s);
  asked_ = {fmt::format("'{}'", request.at("type").get<std::string>())};
  if (const auto client = request.find("client"); client != request.end())
    asked_.push_back(fmt::format("{} for client {}", asked_.front(), json_text(*client)));
  auto answer = channel_->ask(std::move(request), {std::move(stop), silence});
  if (!answer && answer.error().code() == Errc::cancelled) return answer.error();
  if (!answer) return failed(answer.error());
  const json& message = answer->message;
  if (message.value("type", "") != "error") return answer;
  const auto reason = message.find("reason");
  const Error error(Errc::invalid_input,
                    "the trainer: " + (reason != message.end() && reason->is_string()
                                           ? reason->get<std::string>()
                                           : std::string("it gave no reason")));
  const auto diverged = message.find("diverged");
  const bool is_of_weights = diverged != message.end() && *diverged == true;
  return is_of_weights ? error : failed(error);
}

Error TrainerProgram::failed(const Error& error) {
  const int failures = failures_->add(asked_);
  if (failures < command_.retries) return {Errc::invalid_input, error.message()};
  if (failures == 1) return {Errc::internal, error.message()};
  return {Errc::internal, fmt::format("the trainer has failed {} times in a row at {}, the last "
                                      "time with: {}",
                                      failures, asked_.front(), error.message())};
}

Result<ExampleCounts> ask_for_examples(TrainerProgram& program, const PlayedClient& client,
                                       std::stop_token stop) {
  json request{{"type", "client"}};
  add_client(request, client);
  FL_TRY([[maybe_unused]] const auto files, program.prepare(stop));
  FL_TRY(const auto answer, program.ask(std::move(request), std::move(stop)));
  auto counts = parse_client_answer(answer.message);
  if (!counts) return program.failed(counts.error());
  program.succeeded();
  return counts;
}

Result<std::unique_ptr<Trainer>> make_process_trainer(std::shared_ptr<TrainerProgram> program,
                                                      std::string model,
                                                      std::optional<PlayedClient> client) {
  return std::unique_ptr<Trainer>(
      std::make_unique<ProcessTrainer>(std::move(program), std::move(model), std::move(client)));
}

}  // namespace fl
