// A codec: how a flat fp32 vector becomes a payload, chosen by a spec string such as
// "qsgd:127,bucket=256+ef". Payloads say how to decode them (reader.hpp), so only the encoding end
// needs a Codec.
//
//   SPEC  = ["delta+"] (CODEC | RULE {";" RULE}) ["+ef" | "+dgc:" MOMENTUM]
//   RULE  = PATTERN "=" CODEC              the first that fits a tensor's name (rule.hpp)
//   CODEC = QUANTIZER | SELECTOR ["+" QUANTIZER]
//   each of the two = NAME [":" ARG] {"," KEY "=" VALUE}
//
// such as "topk:0.01+qsgd:4+ef", or "*.bias=none;conv*=qsgd:8;*=topk:0.01+qsgd:4". The last rule's
// pattern is "*". A codec's first part takes the setting dense_below too (rule.hpp). Where ARG is a
// fraction to send, a number of bits or levels, the settings from and over let it change with the
// rounds (warm_up.hpp): "topk:0.001,from=0.25,over=4". A rank can begin late: "powersgd:4@20" is
// "none" in the first 19 rounds.
//
// "+ef" asks for error feedback (feedback.hpp), which the owner of the residual does: the codec
// itself keeps nothing. "+dgc:0.9" asks for it with a momentum of 0.9, where there is a selector.
// "delta+" in front asks for what the last vector of this sender is not yet (feedback.hpp), which
// again both ends do. Nor does it keep what helps some codecs from round to round: that is in a
// CodecState, if there is one.
#pragma once

#include "shared/base/error.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/core/byte_io.hpp"
#include "shared/codec/core/codec_state.hpp"
#include "shared/codec/device/device_coder.hpp"
#include "shared/codec/encode/rule.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// Immutable; any thread.
class Codec {
 public:
  /// What is done about what it loses. `momentum` is above 0 and below 1, or 0: none; with it there
  /// is error feedback, and where a delta is sent there is none.
  struct Upkeep {
    bool error_feedback = false;
    float momentum = 0;
    bool is_delta = false;
  };
  /// The last rule fits every name.
  Codec(std::vector<Rule> rules, const Upkeep& upkeep)
      : rules_(std::move(rules)), upkeep_(upkeep) {}

  /// The shortest spec that parses to this codec: no settings that equal their defaults.
  [[nodiscard]] std::string canonical() const;
  [[nodiscard]] bool error_feedback() const { return upkeep_.error_feedback; }
  /// Of the error feedback; 0: it has none.
  [[nodiscard]] float momentum() const { return upkeep_.momentum; }
  /// Whether it codes what a vector differs by from what was decoded of the last one.
  [[nodiscard]] bool is_delta() const { return upkeep_.is_delta; }
  /// Whether what is decoded is always what was encoded.
  [[nodiscard]] bool is_exact() const {
    return is_plain() || canonical() == (upkeep_.error_feedback ? "lossless+ef" : "lossless");
  }
  /// Whether values are only copied, but for statistics (layout.hpp).
  [[nodiscard]] bool is_plain() const {
    return canonical() == (upkeep_.error_feedback ? "none+ef" : "none");
  }
  /// Whether a device can do a part of encode(), of a vector that is there, or else must be copied.
  [[nodiscard]] bool is_for_device(const Layout& layout, bool is_there) const;
  /// The rows of codec_rows() (spec/table.hpp) that it is made of, by name; who encodes must know
  /// them all.
  [[nodiscard]] std::vector<std::string> names() const;

  /// The sketches of its payloads that a server adds up before it reads them (sketch_sums.hpp).
  [[nodiscard]] SummedSketches summed_sketches(const Layout& layout) const;

  /// The largest blocks of its payloads (block_map.hpp).
  [[nodiscard]] std::uint32_t block_elements(const Layout& layout) const;
  /// No payload of this layout is longer.
  [[nodiscard]] std::uint64_t payload_bytes_max(
      const Layout& layout, std::uint32_t block_elements = block_elements_of_codec) const;

  /// Writes the payload of x (layout.elements() values) to offset 0 of `out` and returns its bytes.
  /// Works block by block: beside the sink it takes the memory of a few blocks, of eight for each
  /// of several `threads` (0: one for each core), of 128 with a device (of large ones eight,
  /// and one for each thread; of countsketch then all cells). The same (x, seeds, state) gives the
  /// same bytes on every machine, with any number of threads, and with a device; no state is an
  /// empty one. Blocks may not be larger than block_elements(layout). Errors: invalid_input, naming
  /// tensor[index], for the first value that is not finite or past the codec's range; the sink's.
  /// What the sink then holds is no payload, and what the state holds is of no use.
  [[nodiscard]] Result<std::uint64_t> encode(const Layout& layout, std::span<const float> x,
                                             Seeds seeds, PayloadSink& out,
                                             std::uint32_t block_elements = block_elements_of_codec,
                                             CodecState* state = nullptr, int threads = 1,
                                             const DeviceCopy& device = {}) const;

 private:
  /// Which rule each tensor takes; none for those that are sent dense.
  [[nodiscard]] std::vector<const Rule*> rules_of(const Layout& layout) const;
  struct Plan {
    SelectionPlan selection;
    CompressorPlan compressor;
  };
  /// One for each rule.
  [[nodiscard]] std::vector<Plan> plan(VectorToPlan vector,
                                       std::span<const Rule* const> rule_of) const;
  class Encoding;

  std::vector<Rule> rules_;
  Upkeep upkeep_;
};

/// What the spec of a codec begins with that is_delta(), and its name among the codecs' names.
inline constexpr std::string_view delta_prefix = "delta+";
inline constexpr std::string_view delta_codec = "delta";

inline constexpr std::size_t spec_bytes_max = 256;

inline constexpr std::uint32_t warmed_up = 0xffff'ffff;  // A round after every warm-up.

/// The codec of a round, counted from 1, by default the one that all warm-ups end with. Its
/// canonical form has no warm-up in it: who gets that needs no round. A spec that parses does so
/// for every round. An error is invalid_input; its message shows the spec and points at the part
/// that is wrong.
[[nodiscard]] Result<std::shared_ptr<const Codec>> parse_codec(std::string_view spec,
                                                               std::uint32_t round = warmed_up);

}  // namespace fl
