// SPDX-License-Identifier: Apache-2.0
// The trainer of a virtual client whose model is the user's own: a program of the pool trains for
// it, another one each time.
#pragma once

#include "client/learn/trainer.hpp"
#include "examples/sim/worker_pool.hpp"

#include <memory>
#include <optional>
#include <string>

namespace fl::sim {

/// Makes the trainer of a client, of which only client.examples is not known yet: it asks a program
/// for them. Without a client it is the trainer that measures on central data. `pool` must outlive
/// it. Errors: those of asking; invalid_input: the client has no examples.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_worker_trainer(
    WorkerPool& pool, std::string model, std::optional<PlayedClient> client);

}  // namespace fl::sim
