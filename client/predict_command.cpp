// SPDX-License-Identifier: Apache-2.0
#include "client/predict_command.hpp"

#include "client/command_line.hpp"
#include "client/learn/builtin_file.hpp"
#include "client/learn/data/data.hpp"
#include "client/learn/predictions.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/log.hpp"
#include "shared/flags/flags.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace fl::client {

namespace {

struct PredictOptions {
  std::string model_file;
  std::string spec;    // "": as the file says.
  std::string output;  // "": standard output.
  LearnOptions learn;
};

using Write = std::function<Result<void>(std::string_view text)>;

Result<void> write_to_standard_output(std::string_view text) {
  const bool is_written =
      std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  return is_written ? success() : errno_error("write to standard output");
}

Result<void> write_predictions(const PredictOptions& options, const BuiltinModel& model,
                               const LocalData& data, const Write& write) {
  PredictionTable table(model, *data.all);
  // With the first lines, so that an error before them leaves no output.
  std::string before = table.header();
  FL_CHECK(predict(options.learn, model, data, [&](std::span<const float> outputs) {
    before += table.lines_of(outputs);
    return write(std::exchange(before, {}));
  }));
  log_info("{}: predicted {} examples by the model \"{}\" of {}", options.learn.data, table.rows(),
           model.model, options.model_file);
  return {};
}

/// Replaces the file of --output when all is written.
Result<void> write_file(const std::filesystem::path& path, const PredictOptions& options,
                        const BuiltinModel& model, const LocalData& data) {
  return posix_files().replace(path, [&](File& file) {
    std::uint64_t end = 0;
    return write_predictions(options, model, data, [&](std::string_view text) {
      const std::uint64_t at = std::exchange(end, end + text.size());
      return file.write_at(at, bytes_of(text));
    });
  });
}

Result<void> run_predict(const PredictOptions& options) {
  FL_TRY(const BuiltinModel model,
         read_builtin_model(posix_files(), options.model_file, options.spec));
  FL_TRY(const LocalData data, load_data_to_predict(options.learn));
  if (!options.output.empty()) return write_file(options.output, options, model, data);
  return write_predictions(options, model, data, write_to_standard_output);
}

}  // namespace

std::function<int()> declare_predict_command(CLI::App& app) {
  auto* const command = app.add_subcommand(
      "predict",
      "Predicts classes or values of examples, or how likely texts are, by a built-in model from "
      "fl-server, and prints them as CSV, a line for each example\n"
      "  fl-server export model.safetensors\n"
      "  fl-client predict --model model.safetensors --data csv:new.csv > predictions.csv");
  // The client's flags are no flags of this command.
  command->fallthrough(false);
  const auto options = std::make_shared<PredictOptions>();
  command
      ->add_option("--model", options->model_file,
                   "The model: a safetensors file that fl-server export has written, or a "
                   "checkpoint of the server")
      ->type_name("FILE")
      ->check(not_empty())
      ->required();
  command
      ->add_option("--spec", options->spec,
                   "The built-in model that FILE holds, as --model of fl-server had it; for a file "
                   "that does not say so itself")
      ->check(not_empty());
  declare_reading_flags(*command, options->learn,
                        "The examples, with the same options as in training; labels and targets "
                        "may be missing");
  command->get_option("--data")->required();
  declare_device_flag(*command, options->learn, "Where to compute");
  command->add_option("--threads", options->learn.threads, "Threads; 0 means one per core")
      ->check(whole_number_in(0, 4096))
      ->capture_default_str();
  command
      ->add_option("--output", options->output,
                   "Write the table to this file when it is complete (default: to standard output)")
      ->type_name("FILE")
      ->check(not_empty());
  return [command, options] {
    if (!*command) return -1;
    start_log(false, false);
    const auto done = run_predict(*options);
    if (!done) log_fatal("fl-client predict", done.error().message());
    return done ? 0 : 1;
  };
}

}  // namespace fl::client
