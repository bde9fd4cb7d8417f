// SPDX-License-Identifier: Apache-2.0
// make_trainer(): chooses the trainer for a model.
#include "client/learn/data/data.hpp"
#include "client/learn/data/fit.hpp"
#include "client/learn/learn_options.hpp"
#include "client/learn/synthetic_trainer.hpp"
#include "client/learn/torch_devices.hpp"
#include "shared/params/model_table.hpp"

#ifdef FL_HAS_TORCH
#include "client/learn/torch_library.hpp"
#endif

#include <fmt/format.h>

namespace fl {

namespace {

bool is_synthetic(const LearnOptions& options) { return options.model.starts_with("synthetic:"); }

/// Checks that this program has a trainer for the model, before any data is read.
Result<void> check_model(const LearnOptions& options) {
  FL_TRY([[maybe_unused]] const Layout layout, builtin_layout(options.model));
#ifndef FL_HAS_TORCH
  if (!is_synthetic(options)) {
    return Error(Errc::invalid_input,
                 fmt::format("model \"{}\" needs libtorch, but this program was built without it "
                             "(FL_TORCH=OFF); it can train synthetic:N, and models of your own by "
                             "--trainer",
                             options.model));
  }
#endif
  return {};
}

}  // namespace

Result<TorchDevices> find_torch_devices() {
#ifdef FL_HAS_TORCH
  return load_torch_devices();
#else
  return Error(Errc::invalid_input, "this program was built without libtorch (FL_TORCH=OFF)");
#endif
}

Result<std::unique_ptr<Trainer>> make_trainer(const LearnOptions& options) {
  FL_CHECK(check_model(options));
  LocalData data;
  if (!is_synthetic(options)) {
    FL_TRY(data, load_local_data(options));
    FL_CHECK(check_values(options.model, data));
  } else if (!options.data.empty() || options.evaluate_only) {
    return Error(
        Errc::invalid_input,
        fmt::format("model \"{}\" takes no data and can't be evaluated: leave out --data and "
                    "--evaluate-only",
                    options.model));
  }
  return make_trainer(options, std::move(data));
}

Result<std::unique_ptr<Trainer>> make_trainer(const LearnOptions& options,
                                              [[maybe_unused]] LocalData data) {
  FL_CHECK(check_model(options));
#ifdef FL_HAS_TORCH
  if (!is_synthetic(options)) return load_torch_trainer(options, std::move(data));
#endif
  return make_synthetic_trainer(options.model, options.client_seed);
}

}  // namespace fl
