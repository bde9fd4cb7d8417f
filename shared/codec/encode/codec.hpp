// SPDX-License-Identifier: Apache-2.0
// A codec turns a flat fp32 vector into a payload. A spec string such as "qsgd:127,bucket=256+ef"
// selects it (spec/parser.hpp). Payloads say how to decode them (reader.hpp), so only the encoding
// end needs a Codec.
//
// "+ef" asks for error feedback, "+dgc:0.9" for error feedback with a momentum of 0.9 (only with a
// selector). "delta+" codes only the difference to the sender's last accepted vector, the
// reference. The callers of the codec do all three (feedback.hpp); a Codec keeps nothing. What some
// codecs learn from round to round is in a CodecState, if the caller passes one.
#pragma once

#include "shared/base/error.hpp"
#include "shared/codec/blocks/lane_block.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/core/byte_io.hpp"
#include "shared/codec/core/codec_state.hpp"
#include "shared/codec/device/device_coder.hpp"
#include "shared/codec/encode/rule.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl::codec {

/// Immutable; any thread.
class Codec {
 public:
  /// How the codec's loss is handled. `keep` is the part of the residual that is added to the next
  /// update, above 0, at most 1. `momentum` is above 0 and below 1, or 0 for none. With
  /// momentum there is always error feedback; with a delta there is never.
  struct Upkeep {
    bool error_feedback = false;
    float keep = 1;
    float momentum = 0;
    bool is_delta = false;
  };
  /// The last rule must fit every name.
  Codec(std::vector<Rule> rules, const Upkeep& upkeep)
      : rules_(std::move(rules)), upkeep_(upkeep) {}

  /// The shortest spec that parses to this codec. It leaves out settings that equal their defaults.
  [[nodiscard]] std::string canonical() const;
  [[nodiscard]] bool error_feedback() const { return upkeep_.error_feedback; }
  /// The factor for add_residual().
  [[nodiscard]] float residual_kept() const { return upkeep_.keep; }
  /// The momentum of the error feedback; 0: none.
  [[nodiscard]] float momentum() const { return upkeep_.momentum; }
  /// Whether the caller encodes the difference to a reference ("delta+") instead of the vector.
  [[nodiscard]] bool is_delta() const { return upkeep_.is_delta; }
  /// Whether the decoded values always equal the encoded ones.
  [[nodiscard]] bool is_exact() const {
    return is_plain() || canonical() == "lossless" + feedback();
  }
  /// Whether values are only copied, except for statistics (layout.hpp).
  [[nodiscard]] bool is_plain() const { return canonical() == "none" + feedback(); }
  /// Whether a device can usefully do a part of encode(). `is_there`: the vector lies on the device
  /// already; otherwise it must be copied there.
  [[nodiscard]] bool is_for_device(const Layout& layout, bool is_there) const;
  /// The names of the rows of codec_rows() (spec/table.hpp) that the codec consists of. A sender
  /// must know all of them.
  [[nodiscard]] std::vector<std::string> names() const;

  /// Which sketches of its payloads a server adds up before it reads them (sketch_sums.hpp).
  [[nodiscard]] SummedSketches summed_sketches(const Layout& layout) const;

  /// Rule::lane_bits() of each tensor; 0 for tensors that are sent dense. Empty if all are 0.
  [[nodiscard]] std::vector<int> lane_bits(const Layout& layout) const;

  /// How the levels of all blocks of its payloads are added up, in the blocks' order; as clients
  /// code them who get these steps, one for each tensor. Errors: invalid_input, naming a tensor
  /// whose values can't be added up unread.
  [[nodiscard]] Result<std::vector<LaneRun>> lane_runs(const Layout& layout,
                                                       const LaneSteps& steps) const;

  /// The factors of each tensor in its payloads; nullopt for tensors that never have factors.
  [[nodiscard]] std::vector<std::optional<FactorForm>> factor_forms(const Layout& layout) const;

  /// The most elements of a block in its payloads (block_map.hpp).
  [[nodiscard]] std::uint32_t block_elements(const Layout& layout) const;
  /// The most bytes of a payload of this layout.
  [[nodiscard]] std::uint64_t payload_bytes_max(
      const Layout& layout, std::uint32_t block_elements = block_elements_of_codec) const;

  /// Writes the payload of x (layout.elements() values) to offset 0 of `out` and returns its
  /// length in bytes. `threads`: 0 means one per core. `block_elements` may not be above
  /// block_elements(layout). A null state counts as an empty one.
  ///
  /// Equal (x, seeds, state) give the same bytes on every machine, with any number of threads, with
  /// or without a device. Memory beside the sink: a few blocks; with several threads eight
  /// blocks per thread; with a device 128 blocks. Of large blocks (block_map.hpp) it is one per
  /// thread, and with a device eight more.
  ///
  /// Errors: invalid_input, naming tensor[index], for the first value that is not finite or out of
  /// the codec's range; the sink's errors. After an error the contents of sink and state have no
  /// meaning.
  [[nodiscard]] Result<std::uint64_t> encode(const Layout& layout, std::span<const float> x,
                                             CodeInputs inputs, PayloadSink& out,
                                             std::uint32_t block_elements = block_elements_of_codec,
                                             CodecState* state = nullptr, int threads = 1,
                                             const DeviceCopy& device = {}) const;

 private:
  /// The rule of each tensor; null for tensors that are sent dense.
  [[nodiscard]] std::vector<const Rule*> rules_of(const Layout& layout) const;
  /// What error feedback without momentum adds to the spec: "+ef"; "" if there is none.
  [[nodiscard]] std::string feedback() const;

  std::vector<Rule> rules_;
  Upkeep upkeep_;
};

/// The prefix of a spec whose codec is_delta(), and its name among the codecs' names.
inline constexpr std::string_view delta_prefix = "delta+";
inline constexpr std::string_view delta_codec = "delta";

}  // namespace fl::codec
