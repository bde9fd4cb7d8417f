// make_trainer(): which trainer serves which model.
#include "client/learn/data.hpp"
#include "client/learn/synthetic_trainer.hpp"
#include "client/learn/trainer.hpp"
#include "shared/params/model_table.hpp"

#ifdef FL_HAS_TORCH
#include "client/learn/torch_trainer.hpp"
#endif

#include <fmt/format.h>

namespace fl {

namespace {

Result<std::unique_ptr<Trainer>> make_image_trainer([[maybe_unused]] const LearnOptions& options) {
#ifdef FL_HAS_TORCH
  FL_TRY(LocalData data, load_local_data(options));
  return make_torch_trainer(options, std::move(data));
#else
  return Error(Errc::invalid_input,
               fmt::format("model \"{}\" needs libtorch, and this program was built without it "
                           "(FL_TORCH=OFF); there is: synthetic:N",
                           options.model));
#endif
}

}  // namespace

Result<std::unique_ptr<Trainer>> make_trainer(const LearnOptions& options) {
  // Before any data is read: an unknown name fails at once, and says which there are.
  FL_TRY([[maybe_unused]] const Layout layout, builtin_layout(options.model));
  if (!options.model.starts_with("synthetic:")) return make_image_trainer(options);
  if (!options.data.empty() || options.evaluate_only) {
    return Error(
        Errc::invalid_input,
        fmt::format("model \"{}\" takes no data and has nothing to evaluate", options.model));
  }
  return make_synthetic_trainer(options.model, options.client_seed);
}

}  // namespace fl
