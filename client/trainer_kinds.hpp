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
#include "shared/base/io/digest.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fl::client {

/// A trainer that was started. Its functions keep alive whatever they use.
struct StartedTrainer {
  TrainerFactory make;  // Makes the trainer of each run's model.
  /// Lets other processes that train write their work into the trace. Null: no other process writes
  /// into it.
  std::function<void(const std::shared_ptr<TraceFile>&)> trace_into = {};
  /// Asks those processes to end. Null: they end with the client.
  std::function<void()> end = {};
  /// The shape of the data, in words (data_shape_text()); "": only the trainer knows it.
  std::string data = {};
  /// The only tensors that it trains (digest_in_any_order()); none: any model's, or not known.
  std::optional<Digest> tensors = {};
};

/// The arguments of TrainerKind::start.
struct TrainerStart {
  const ClientOptions& options;
  const LearnOptions& learn;  // options.learn, with what the client itself has set.
  const TrainerFactory& own;  // The trainer that the program has brought along; empty in fl-client.
  const std::optional<site::SitePlace>&
      place;  // Given by a launcher that has started this process.
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
  /// Adds the lines of `doctor` on its data and devices. Null: it has none.
  void (*check)(const ClientOptions& options, DoctorLines& lines) = nullptr;
};

/// All kinds. The first one that is chosen trains; the last one always is.
[[nodiscard]] std::span<const TrainerKind> trainer_kinds();
/// The kind that these options choose. `own`: as above.
[[nodiscard]] const TrainerKind& chosen_trainer_kind(const ClientOptions& options,
                                                     const TrainerFactory& own);

}  // namespace fl::client
