// The libtorch trainer is a library of its own, libfl-torch.so beside the program, and is loaded
// when a run's model first needs it. To load libtorch takes half a second, ten times what else a
// client does from its start to its first message; and what goes without (join, --help, synthetic
// models, wrong flags) runs without it.
#pragma once

#include "client/learn/data/data.hpp"
#include "client/learn/trainer.hpp"

#include <memory>

namespace fl {

/// make_torch_trainer() (torch_trainer.hpp) of that library, which then stays loaded. Errors: its
/// own; not_found, saying what the loader said, where there is no library, or one that is not of
/// this program's build. Any thread.
[[nodiscard]] Result<std::unique_ptr<Trainer>> load_torch_trainer(const LearnOptions& options,
                                                                  LocalData data);

/// What the library exports, under the name `torch_entry_name`.
struct TorchEntry {
  const char* version;  // torch_library_version of its build.
  Result<std::unique_ptr<Trainer>> (*make_trainer)(const LearnOptions& options, LocalData data);
};
inline constexpr const char* torch_entry_name = "fl_torch_entry";

/// Program and library exchange C++ objects, so both must be of one compiler and of the same
/// headers; FL_TORCH_INTERFACE is the version and a digest of these headers. Each has a clock and a
/// choice of kernels of its own.
inline constexpr const char* torch_library_version = FL_TORCH_INTERFACE " " __VERSION__;

}  // namespace fl
