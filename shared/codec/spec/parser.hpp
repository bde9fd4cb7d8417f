// SPDX-License-Identifier: Apache-2.0
// The spec of a codec as text, and the Codec that it names.
//
//   SPEC  = ["delta+"] (CODEC | RULE {";" RULE}) ["+ef" | "+dgc:" MOMENTUM]
//   RULE  = PATTERN "=" CODEC              a tensor takes the first rule that fits its name
//   CODEC = QUANTIZER | SELECTOR ["+" QUANTIZER]
//   QUANTIZER and SELECTOR = NAME [":" ARG] {"," KEY "=" VALUE}
//
// Examples: "topk:0.01+qsgd:4+ef" and "*.bias=none;conv*=qsgd:8;*=topk:0.01+qsgd:4". The last
// rule's pattern is "*". The first part of a CODEC also takes the setting dense_below (rule.hpp).
// If ARG is a fraction to send, or a number of bits or levels, the settings from and over let it
// change with the rounds (warm_up.hpp): "topk:0.001,from=0.25,over=4". A rank can start late:
// "powersgd:4@20" is "none" in the first 19 rounds.
//
// Pure functions; any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/codec/encode/codec.hpp"

#include <cstdint>
#include <memory>
#include <string_view>

namespace fl::codec {

inline constexpr std::uint32_t warmed_up = 0xffff'ffff;  // A round after every warm-up.

/// Makes the codec of a round, counted from 1; by default the codec after all warm-ups. Its
/// canonical form contains no warm-up, so the receiver of that form needs no round. A spec that
/// parses for one round parses for every round. It has at most limits::spec_bytes_max bytes.
/// Errors: invalid_input; the message shows the spec, or the beginning of a long one, and points at
/// the wrong part.
[[nodiscard]] Result<std::shared_ptr<const Codec>> parse_codec(std::string_view spec,
                                                               std::uint32_t round = warmed_up);

}  // namespace fl::codec
