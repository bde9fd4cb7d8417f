// SPDX-License-Identifier: Apache-2.0
// A trainer of the user's own in C++, with checks around it: what it gets wrong becomes an error
// that names it, before it reaches a run. On the thread that trains.
#pragma once

#include "client/learn/trainer.hpp"
#include "shared/base/error.hpp"

#include <memory>
#include <string>

namespace fl {

/// Makes the user's trainer for `model` and checks what it says about itself. The trainer that is
/// returned also checks each update, turns exceptions into errors, and makes the initial weights of
/// a built-in model as the server does. Errors: those of `factory`; invalid_input for a layout or
/// metrics that can't be; internal for an exception, and for a factory that returns null.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_guarded_trainer(const TrainerFactory& factory,
                                                                    const std::string& model);

}  // namespace fl
