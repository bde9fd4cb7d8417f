// Error feedback: what a codec left out of one update is added to the next one, so that in the sum
// over rounds nothing is lost. Seide 2014, "1-bit SGD", section 2; Karimireddy 2019, algorithm 2.
//
//   add_residual(update, residual);          before encoding
//   keep_residual(update, payload, residual) after encoding: residual = update - decode(payload)
//   put_back(residual, payload)              when the receiver refused the payload or lost it
//
// Plain functions on flat vectors of one layout; the owner keeps the residual, durably.
#pragma once

#include "shared/base/error.hpp"
#include "shared/codec/payload.hpp"

#include <span>

namespace fl {

/// update += residual.
void add_residual(std::span<float> update, std::span<const float> residual);

/// residual = update - decode(payload), block by block; both may be the same memory. After an error
/// (the source's, or corrupt) the residual is partly written.
[[nodiscard]] Result<void> keep_residual(std::span<const float> update, PayloadReader& payload,
                                         std::span<float> residual);

/// |update - decode(payload)|^2, when no residual is kept. Errors as above.
[[nodiscard]] Result<double> squared_error(std::span<const float> update, PayloadReader& payload);

/// residual += decode(payload): as if it had never been sent. Errors as above.
[[nodiscard]] Result<void> put_back(std::span<float> residual, PayloadReader& payload);

}  // namespace fl
