// SPDX-License-Identifier: Apache-2.0
// Loads the libtorch trainer, which is a library of its own (libfl-torch.so in the program's
// folder), when a run's model first needs it. Loading libtorch takes half a second, ten times as
// long as everything else that a client does before its first message. Without it, `join`, --help,
// synthetic models and wrong flags stay fast.
#pragma once

#include "client/learn/data/data.hpp"
#include "client/learn/learn_options.hpp"
#include "client/learn/predictions.hpp"
#include "client/learn/torch_devices.hpp"

#include <memory>

namespace fl {

/// Loads the library, which then stays loaded, and calls its make_torch_trainer()
/// (torch_trainer.hpp). Errors: those of make_torch_trainer(); not_found if the library can't be
/// loaded (with the loader's message) or comes from another build. Any thread.
[[nodiscard]] Result<std::unique_ptr<Trainer>> load_torch_trainer(const LearnOptions& options,
                                                                  LocalData data);

/// Calls that library's predict_by_torch() (torch_predictor.hpp). Errors: its own, and as above.
[[nodiscard]] Result<void> load_torch_predictor(const LearnOptions& options,
                                                const BuiltinModel& model, const LocalData& data,
                                                const TakeOutputs& take);

/// Asks that library for find_torch_devices().
[[nodiscard]] Result<TorchDevices> load_torch_devices();

/// The symbol that the library exports, named `torch_entry_name`.
struct TorchEntry {
  const char* version;  // The library's torch_library_version.
  Result<std::unique_ptr<Trainer>> (*make_trainer)(const LearnOptions& options, LocalData data);
  Result<void> (*predict)(const LearnOptions& options, const BuiltinModel& model,
                          const LocalData& data, const TakeOutputs& take);
  TorchDevices (*find_devices)();
};
inline constexpr const char* torch_entry_name = "fl_torch_entry";

/// Program and library exchange C++ objects, so both must be built by the same compiler from the
/// same headers; FL_TORCH_INTERFACE is the version and a digest of these
/// headers. Program and library each have
/// their own clock and their own kernel table.
inline constexpr const char* torch_library_version = FL_TORCH_INTERFACE " " __VERSION__;

}  // namespace fl
