// SPDX-License-Identifier: Apache-2.0
// Chooses a codec for each client from the run's ladder of codecs, the finest first: --codec "auto"
// or "auto:SPEC|SPEC|…". Any other --codec is a ladder of one. A client gets the finest codec whose
// update is predicted to arrive in time:
//
//   seconds = what the client last took until its upload began (download, training, coding)
//             + the bytes of the codec at the pace of its last upload
//
// The time limit is four fifths of --deadline. Without a deadline it is what half of the clients
// need with the middle of the ladder, plus a quarter: so no slow connection holds up the others.
// Clients without a measured upload begin in the middle, and clients of equal pace stay there.
//
// A client that was late gets one codec coarser, whatever the prediction says: it may never have
// been measured. A client that is too slow even for the coarsest codec gets the finest one that
// takes at most a tenth longer than the coarsest: if training takes the time, a coarse codec would
// lose much and win nothing.
//
// Codecs with and without "+ef" may be mixed: a residual waits at the client until a codec with
// error feedback sends it. All codecs of "auto" have it, so a client that reaches "none+ef" sends
// the rest of its residual at once.
//
// Pure functions of what the store knows, so a restart chooses the same.
#pragma once

#include "server/history/records.hpp"
#include "shared/base/error.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl::server {

/// The specs of a --codec, in order; a --codec that is not a ladder is a ladder of one. Errors are
/// invalid_input: a bad spec, or momenta that differ, as a client keeps only one velocity.
[[nodiscard]] Result<std::vector<std::string>> parse_ladder(std::string_view codec);

/// One codec of a ladder in one round.
struct Rung {
  std::string codec;        // In canonical form.
  std::uint64_t bytes = 0;  // Expected size of an update; 0 if the ladder has one rung.
};

/// The rungs of the ladder in a round. Their bytes are measured by coding Gaussian values.
[[nodiscard]] std::vector<Rung> rungs_of(std::span<const std::string> ladder, Round round,
                                         const Layout& layout);

/// The time after its offer in which an update should arrive.
struct TimeLimit {
  double seconds = 0;
  std::string why;
};

/// `deadline_s` 0: there is no deadline.
[[nodiscard]] TimeLimit time_limit(std::span<const Rung> rungs, double deadline_s,
                                   const std::map<std::string, ClientHistory>& histories);

struct CodecChoice {
  std::string codec;
  std::string reason;  // In words, for the history; "" if the ladder has one rung.
};

[[nodiscard]] CodecChoice choose_codec(std::span<const Rung> rungs, const TimeLimit& limit,
                                       const ClientHistory& client);

}  // namespace fl::server
