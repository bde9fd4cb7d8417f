// SPDX-License-Identifier: Apache-2.0
// Error feedback: what a codec lost of one update is the residual, and the residual is added to the
// next update. So nothing is lost in the sum over rounds. Seide 2014, "1-bit SGD", section 2;
// Karimireddy 2019, algorithm 2.
//
//   add_residual(update, residual)            before encoding
//   keep_residual(update, payload, residual)  after encoding: residual = update - decode(payload)
//   add_decoded(residual, payload)            if the receiver refused the payload or lost it
//
// With momentum (a codec's "+dgc"), a velocity is added up instead of the updates. Lin 2018, "Deep
// gradient compression": momentum correction (section 3.2) and momentum factor masking (section
// 3.3). Without the correction, an element that is sent once in many rounds would miss the momentum
// of the rounds between. Without the masking, a stale velocity would keep pushing an element that
// was already sent.
//
//   add_velocity(update, velocity, m)         before add_residual():
//                                             update = velocity = m velocity + update
//   stop_sent(velocity, payload)              after encoding
//
// So the sent values plus the residual equal the sum of all velocities, not of the updates: each
// update is sent up to 1 / (1 - m) times in the end. The learning rate must be chosen for that, and
// the clients' own momentum turned off. A refused payload goes back into the residual whole, but
// the velocity stays 0 where it was sent: there a client that was late starts afresh.
//
// Instead of a residual a sender may have a reference (a codec's "delta+"): its last accepted
// update, as both ends know it. Richtarik 2021, "EF21: a new, simpler, theoretically better, and
// practically faster error feedback", algorithm 2, with the update in place of the gradient. The
// codec codes the difference to the reference, so earlier losses are part of the next difference.
// If a sender's updates resemble each other, as with data unlike the other senders', the difference
// is small.
//
//   subtract_reference(update, reference)     before encoding: the vector to encode
//   add_decoded(reference, payload)           at both ends: reference + decoded, in this order, is
//                                             the update as it counts and the next reference
//
// All functions work on flat vectors of one layout. The caller keeps residual, velocity and
// reference, and makes them durable. The results are the same with any number of threads. Where a
// vector is too large for memory, it is given as a mapping, and the result goes to a WriteValues: a
// block at a time, in any order, with several threads from all of them.
#pragma once

#include "shared/base/error.hpp"
#include "shared/codec/payload/reader.hpp"
#include "shared/params/write_values.hpp"

#include <span>
#include <vector>

namespace fl::codec {

/// Computes update += keep * residual. With keep < 1 old losses fade: a loss of one update has a
/// weight of keep^n in the n-th update after it.
void add_residual(std::span<float> update, std::span<const float> residual, float keep = 1);

/// velocity = momentum * velocity + update; then update = velocity.
void add_velocity(std::span<float> update, std::span<float> velocity, float momentum);

/// velocity = 0 wherever decode(payload) is not 0. Errors as keep_residual().
[[nodiscard]] Result<void> stop_sent(std::span<const float> velocity, PayloadReader& payload,
                                     const WriteValues& write, int threads);
[[nodiscard]] Result<void> stop_sent(std::span<float> velocity, PayloadReader& payload,
                                     int threads = 1);

/// How much coding a vector x has lost: sums of squares, in fp64, of x and of x - decoded.
struct CodingError {
  double power = 0;
  double lost = 0;
  /// The normalised mean squared error, lost / power; 0 of a vector that is 0.
  [[nodiscard]] double nmse() const { return power > 0 ? lost / power : 0.0; }
};

/// residual = update - decode(payload), block by block. `update` and `residual` may be the same
/// memory. Errors: corrupt; the source's; those of `write`. After an error the residual is partly
/// written.
[[nodiscard]] Result<CodingError> keep_residual(std::span<const float> update,
                                                PayloadReader& payload, const WriteValues& write,
                                                int threads);
[[nodiscard]] Result<CodingError> keep_residual(std::span<const float> update,
                                                PayloadReader& payload, std::span<float> residual,
                                                int threads = 1);

/// The error alone, for a codec without a residual. Errors as above.
[[nodiscard]] Result<CodingError> coding_error(std::span<const float> update,
                                               PayloadReader& payload, int threads = 1);

/// values += decode(payload). With a residual this undoes the sending; with a reference it gives
/// the receiver's next reference. Errors as above. Without
/// `values`, decode(payload).
[[nodiscard]] Result<void> add_decoded(std::span<const float> values, PayloadReader& payload,
                                       const WriteValues& write, int threads);
[[nodiscard]] Result<void> add_decoded(std::span<float> values, PayloadReader& payload,
                                       int threads = 1);

/// update -= reference.
void subtract_reference(std::span<float> update, std::span<const float> reference);

}  // namespace fl::codec
