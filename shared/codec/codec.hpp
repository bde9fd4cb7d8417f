// A codec: how a flat fp32 vector becomes a payload, chosen by a spec string such as
// "qsgd:127,bucket=256+ef". Payloads say how to decode them (payload.hpp), so only the encoding end
// needs a Codec.
//
//   SPEC = NAME [":" ARG] {"," KEY "=" VALUE} ["+ef"]
//
// "+ef" asks for error feedback (feedback.hpp), which the owner of the residual does: the codec
// itself keeps nothing.
#pragma once

#include "shared/base/error.hpp"
#include "shared/codec/block_map.hpp"
#include "shared/codec/byte_io.hpp"
#include "shared/codec/method.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace fl {

/// Immutable; any thread.
class Codec {
 public:
  Codec(std::unique_ptr<const Method> method, bool error_feedback)
      : method_(std::move(method)), error_feedback_(error_feedback) {}

  /// The shortest spec that parses to this codec: no settings that equal their defaults.
  [[nodiscard]] std::string canonical() const;
  [[nodiscard]] bool error_feedback() const { return error_feedback_; }

  /// No payload of this layout is longer.
  [[nodiscard]] std::uint64_t payload_bytes_max(
      const Layout& layout, std::uint32_t block_elements = block_elements_default) const;

  /// Writes the payload of x (layout.elements() values) to offset 0 of `out` and returns its bytes.
  /// Works block by block: beside the sink it takes the memory of one block. The same (x, seed)
  /// gives the same bytes on every machine. Errors: invalid_input, naming tensor[index], for a
  /// value that is not finite or past the codec's range; the sink's. What the sink then holds is no
  /// payload.
  [[nodiscard]] Result<std::uint64_t> encode(
      const Layout& layout, std::span<const float> x, std::uint64_t seed, PayloadSink& out,
      std::uint32_t block_elements = block_elements_default) const;

 private:
  std::unique_ptr<const Method> method_;
  bool error_feedback_;
};

/// An error is invalid_input; its message shows the spec and points at the part that is wrong.
[[nodiscard]] Result<std::shared_ptr<const Codec>> parse_codec(std::string_view spec);

/// All codecs, for --help and for tests.
struct CodecRow {
  std::string_view name;
  std::string_view usage;
  std::string_view about;
  std::string_view example;  // A spec that parses, in canonical form.
};
[[nodiscard]] std::span<const CodecRow> codec_rows();

}  // namespace fl
