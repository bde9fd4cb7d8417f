// SPDX-License-Identifier: Apache-2.0
#include "client/trainer_kinds.hpp"

#include "client/client_doctor.hpp"
#include "client/learn/data/data.hpp"
#include "client/learn/data/fit.hpp"
#include "client/learn/guarded_trainer.hpp"
#include "client/learn/process/process_trainer.hpp"
#include "client/site/site.hpp"
#include "shared/base/async/stop_signals.hpp"
#include "shared/base/log.hpp"
#include "shared/params/model_table.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace fl::client {

namespace {

/// A trainer in C++ that the program has brought along.
Result<StartedTrainer> start_own(const TrainerStart& from) {
  return StartedTrainer{.make = [own = from.own](const std::string& model) {
    return make_guarded_trainer(own, model);
  }};
}

/// The ranks of a site. They load the data themselves.
Result<StartedTrainer> start_site(const TrainerStart& from) {
  const StopWhileStarting stop;
  FL_TRY(const auto site, site::Site::start(from.options.site, from.place, from.learn,
                                            from.options.state, stop.token()));
  return StartedTrainer{
      .make = [site, learn = from.learn](
                  const std::string& model) { return make_site_trainer(site, learn, model); },
      .trace_into = [site](const std::shared_ptr<TraceFile>& trace) { site->trace_into(trace); }};
}

/// A program of the user's.
Result<StartedTrainer> start_program(const TrainerStart& from) {
  const StopWhileStarting stop;
  FL_TRY(const auto program,
         TrainerProgram::start(from.options.trainer, from.options.state, stop.token()));
  const TrainerHello& hello = program->hello();
  log_info("the trainer has {} parameters in {} tensors, {} training examples, {} held out",
           hello.layout.elements(), hello.layout.tensors().size(), hello.examples.train,
           hello.examples.holdout);
  return StartedTrainer{
      .make = [program](const std::string& model) { return make_process_trainer(program, model); },
      .end = [program] { program->end(); },
      .tensors = digest_in_any_order(hello.layout)};
}

/// A built-in model in this process. The first run's model takes the data that is loaded here; a
/// later one loads it again. A synthetic model takes no data, and make_trainer() reports an error
/// if there is some.
Result<StartedTrainer> start_builtin(const TrainerStart& from) {
  std::optional<LocalData> data;
  if (!from.learn.data.empty()) {
    FL_TRY(data, load_local_data(from.learn));
  }
  std::string shape = data ? data_shape_text(*data->all) : "";
  auto first = std::make_shared<std::optional<LocalData>>(std::move(data));
  auto make = [learn = from.learn,
               first](const std::string& model) -> Result<std::unique_ptr<Trainer>> {
    LearnOptions mine = learn;
    mine.model = model;
    auto loaded = model.starts_with("synthetic:") ? std::nullopt : std::exchange(*first, {});
    if (!loaded) return make_trainer(mine);
    FL_CHECK(check_values(model, *loaded));
    return make_trainer(mine, std::move(*loaded));
  };
  return StartedTrainer{.make = std::move(make), .data = std::move(shape)};
}

using Options = ClientOptions;

constexpr TrainerKind table[] = {
    {.name = "own",
     .is_chosen = [](const Options&, const TrainerFactory& own) { return own != nullptr; },
     .start = start_own},
    {.name = "site",
     .is_chosen = [](const Options& o, const TrainerFactory&) { return o.site.is_set(); },
     .start = start_site,
     .is_for_builtin_models = true,
     .check = check_builtin_trainer},
    {.name = "program",
     .is_chosen = [](const Options& o, const TrainerFactory&) { return o.trainer.is_set(); },
     .start = start_program,
     .weights_model = custom_prefix,
     .check = check_trainer_program},
    {.name = "built-in",
     .is_chosen = [](const Options&, const TrainerFactory&) { return true; },
     .start = start_builtin,
     .is_for_builtin_models = true,
     .check = check_builtin_trainer},
};

}  // namespace

std::span<const TrainerKind> trainer_kinds() { return table; }

const TrainerKind& chosen_trainer_kind(const ClientOptions& options, const TrainerFactory& own) {
  return *std::ranges::find_if(
      trainer_kinds(), [&](const TrainerKind& kind) { return kind.is_chosen(options, own); });
}

}  // namespace fl::client
