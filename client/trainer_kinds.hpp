// SPDX-License-Identifier: Apache-2.0
// The table of what may train in a client. The client's main function asks it what to start, and
// `doctor` what to look at. To add a kind, write its functions and a row in trainer_kinds.cpp.
// Called on the main thread, but for the factories, which the thread that trains calls.
#pragma once

#include "client/command_line.hpp"
#include "client/learn/trace.hpp"
#include "client/learn/trainer.hpp"
#include "client/site/site_options.hpp"
#include "shared/base/doctor.hpp"
#include "shared/base/error.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace fl::client {

/// What trains, once it is started. It keeps what it needs until the last copy is gone.
struct StartedTrainer {
  TrainerFactory make;  // Makes the trainer of each run's model.
  /// Writes what it does beside this process to the file, too. Null: it does nothing beside it.
  std::function<void(const std::shared_ptr<TraceFile>&)> trace_into = {};
  /// Asks it to end. Null: it ends with the client.
  std::function<void()> end = {};
};

/// What a kind is started from.
struct TrainerStart {
  const ClientOptions& options;
  const LearnOptions& learn;  // options.learn, with what the client itself has set.
  const TrainerFactory& own;  // The trainer that the program has brought along; empty in fl-client.
  const std::optional<site::SitePlace>& place;  // Of this process, if a launcher has started it.
};

struct TrainerKind {
  std::string_view name;
  bool (*is_chosen)(const ClientOptions& options, const TrainerFactory& own);
  /// Errors: those of the data or the program; cancelled.
  Result<StartedTrainer> (*start)(const TrainerStart& from);
  /// --model must name a built-in model; the client looks at it before it connects.
  bool is_for_builtin_models = false;
  /// The model that the sub-command initial-weights asks for; "": that of --model.
  std::string_view weights_model = {};
  /// What `doctor` finds of it. Null: nothing is known of its data and devices.
  void (*check)(const ClientOptions& options, DoctorLines& lines) = nullptr;
};

/// All kinds. The first one that is chosen trains; the last one always is.
[[nodiscard]] std::span<const TrainerKind> trainer_kinds();
/// The kind that these options choose. `own`: as above.
[[nodiscard]] const TrainerKind& chosen_trainer_kind(const ClientOptions& options,
                                                     const TrainerFactory& own);

}  // namespace fl::client
