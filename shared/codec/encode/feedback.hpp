// Error feedback: what a codec left out of one update is added to the next one, so that in the sum
// over rounds nothing is lost. Seide 2014, "1-bit SGD", section 2; Karimireddy 2019, algorithm 2.
//
//   add_residual(update, residual);          before encoding
//   keep_residual(update, payload, residual) after encoding: residual = update - decode(payload)
//   add_decoded(residual, payload)           when the receiver refused the payload or lost it
//
// With momentum (a codec's "+dgc"), what is added up is not the updates but a velocity: Lin 2018,
// "Deep gradient compression", momentum correction (section 3.2) and momentum factor masking
// (section 3.3). Otherwise an element that is sent once in many rounds goes without the momentum of
// those in between; and where it was sent, a stale velocity must not carry it on.
//
//   add_velocity(update, velocity, m)        before add_residual(): velocity = m velocity + update,
//                                            which becomes the update
//   stop_sent(velocity, payload)             after encoding
//
// So what was sent and the residual sum to all velocities, not to the updates: in the end each of
// these is sent up to 1 / (1 - m) times, for which the learning rate must be chosen, and the
// clients' own momentum turned off. A payload that is refused goes back into the residual whole;
// the velocity stays stopped where it was sent, so that a client that was late begins there anew.
//
// Instead of a residual there may be a reference (a codec's "delta+"): what both ends have of the
// sender's last update. Richtarik 2021, "EF21: a new, simpler, theoretically better, and
// practically faster error feedback", algorithm 2, with the update in place of the gradient. What
// is coded is the difference to it, so what was lost before is in the next one; and where a
// sender's updates resemble each other, as they do when its data are not like the others', little
// is left to code.
//
//   difference_to(update, reference)         what to encode
//   add_decoded(reference, payload)          at both ends: the update as it counts, the next
//                                            reference; in the one order reference + decoded
//
// Plain functions on flat vectors of one layout; the owner keeps residual, velocity and reference,
// durably.
// The results are the same with any number of threads.
#pragma once

#include "shared/base/error.hpp"
#include "shared/codec/payload/reader.hpp"

#include <span>
#include <vector>

namespace fl {

/// update += residual.
void add_residual(std::span<float> update, std::span<const float> residual);

/// velocity = momentum * velocity + update, and the same for update.
void add_velocity(std::span<float> update, std::span<float> velocity, float momentum);

/// velocity = 0 wherever decode(payload) is not 0. Errors as of keep_residual().
[[nodiscard]] Result<void> stop_sent(std::span<float> velocity, PayloadReader& payload,
                                     int threads = 1);

/// residual = update - decode(payload), block by block; both may be the same memory. After an error
/// (the source's, or corrupt) the residual is partly written.
[[nodiscard]] Result<void> keep_residual(std::span<const float> update, PayloadReader& payload,
                                         std::span<float> residual, int threads = 1);

/// |update - decode(payload)|^2, when no residual is kept. Errors as above.
[[nodiscard]] Result<double> squared_error(std::span<const float> update, PayloadReader& payload,
                                           int threads = 1);

/// |update - decode(payload)|^2 / |update|^2, 0 where that is 0. If `is_kept` the update becomes
/// what was lost of it. Errors as above.
[[nodiscard]] Result<double> nmse_of(std::span<float> update, PayloadReader& payload, bool is_kept,
                                     int threads = 1);

/// values += decode(payload): a residual's, as if it had never been sent; a reference's, as the
/// receiver has it then. Errors as above.
[[nodiscard]] Result<void> add_decoded(std::span<float> values, PayloadReader& payload,
                                       int threads = 1);

/// update - reference.
[[nodiscard]] std::vector<float> difference_to(std::span<const float> update,
                                               std::span<const float> reference);

}  // namespace fl
