// The trainer of a virtual client: nothing but who it is. A real one is made for each piece of
// work, in the thread that does it, so that models and data in memory are those of the clients at
// work.
#pragma once

#include "client/learn/data/data.hpp"
#include "client/learn/trainer.hpp"
#include "shared/params/layout.hpp"

#include <memory>
#include <optional>

namespace fl {

/// What all virtual clients have in common. Read only; any thread.
struct SharedLearning {
  LearnOptions options;  // The model, one thread, and the number of shards.
  Layout layout;
  std::optional<DividedData> data;  // None: the model is synthetic.
  /// Not 0: each client takes from so many to the asked number of epochs, drawn anew in each round.
  std::uint32_t epochs_from = 0;
};

/// Reads the data, once. invalid_input: model and data do not fit.
[[nodiscard]] Result<SharedLearning> load_shared_learning(LearnOptions options);

/// `shared` must outlive it.
[[nodiscard]] std::unique_ptr<Trainer> make_virtual_trainer(const SharedLearning& shared,
                                                            std::uint32_t shard,
                                                            std::uint64_t client_seed);

}  // namespace fl
