// Which codec a client is asked for when --codec is a ladder of them: "auto", or
// "auto:SPEC|SPEC|…", the finest first. Each client gets the finest with which its update is
// predicted to be here in time:
//
//   seconds = what it last took to begin its upload (download, training, coding)
//             + the bytes of the codec at the pace of its last upload
//
// In time is four fifths of --deadline. Without one it is what half of the clients need with the
// middle of the ladder, and a quarter more: nobody's slow line holds up the others, and that
// middle, where clients without a measured update begin, is what all of one pace stay with. A
// client that was late comes one down, whatever the prediction: it may never have been measured.
// One that is too slow for the coarsest gets the finest that takes at most a tenth longer than
// that: where it is training that takes the time, a coarse code would lose much and win nothing.
//
// Rungs with and without "+ef" go together: a residual waits in the client until a codec with
// feedback sends it. The codecs of "auto" all have it, so a client that comes up to "none+ef" sends
// what is left of it at once.
//
// Pure functions: of what the store knows, so a restart chooses the same.
#pragma once

#include "server/history/store.hpp"
#include "shared/base/error.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// The specs of a --codec, in order; of one that is no ladder itself, alone. Errors are
/// invalid_input: of a spec, or momenta that differ, as there is one velocity.
[[nodiscard]] Result<std::vector<std::string>> parse_ladder(std::string_view codec);

/// One codec of a ladder in one round.
struct Rung {
  std::string codec;        // Canonical.
  std::uint64_t bytes = 0;  // That an update is expected to have; 0 where there is one rung.
};

/// The ladder in a round. How many bytes a value takes is measured on Gaussian ones.
[[nodiscard]] std::vector<Rung> rungs_of(std::span<const std::string> ladder, Round round,
                                         const Layout& layout);

/// When an update should be here, after its offer.
struct TimeLimit {
  double seconds = 0;
  std::string why;
};

/// `deadline_s` 0: none.
[[nodiscard]] TimeLimit time_limit(std::span<const Rung> rungs, double deadline_s,
                                   const std::map<std::string, ClientHistory>& histories);

struct CodecChoice {
  std::string codec;
  std::string reason;  // For the history, in words; "" where there is one rung.
};

[[nodiscard]] CodecChoice choose_codec(std::span<const Rung> rungs, const TimeLimit& limit,
                                       const ClientHistory& client);

}  // namespace fl
