// All codecs: what a user reads of each, and who parses it. A new one is a file with its method and
// parser, a declaration here, and a line in table.cpp.
#pragma once

#include "shared/codec/encode/codec.hpp"
#include "shared/codec/spec/spec_parts.hpp"

namespace fl {

[[nodiscard]] CompressorResult parse_none(const SpecParts& parts);
[[nodiscard]] CompressorResult parse_lossless(const SpecParts& parts);
[[nodiscard]] CompressorResult parse_fp16(const SpecParts& parts);
[[nodiscard]] CompressorResult parse_bf16(const SpecParts& parts);
[[nodiscard]] CompressorResult parse_qsgd(const SpecParts& parts);
[[nodiscard]] CompressorResult parse_kbit(const SpecParts& parts);
[[nodiscard]] CompressorResult parse_terngrad(const SpecParts& parts);
[[nodiscard]] CompressorResult parse_sign(const SpecParts& parts);
[[nodiscard]] CompressorResult parse_eden(const SpecParts& parts);
[[nodiscard]] CompressorResult parse_ecuq(const SpecParts& parts);
[[nodiscard]] CompressorResult parse_powersgd(const SpecParts& parts);
[[nodiscard]] CompressorResult parse_gradzip(const SpecParts& parts);
[[nodiscard]] CompressorResult parse_countsketch(const SpecParts& parts);
[[nodiscard]] SelectorResult parse_topk(const SpecParts& parts);
[[nodiscard]] SelectorResult parse_randk(const SpecParts& parts);
[[nodiscard]] SelectorResult parse_threshold(const SpecParts& parts);
[[nodiscard]] SelectorResult parse_ema_threshold(const SpecParts& parts);

/// One of the two parsers is there.
struct CodecParser {
  CodecRow shown;
  CompressorResult (*parse)(const SpecParts&);
  SelectorResult (*parse_selector)(const SpecParts&) = nullptr;
  bool warms_up = false;  // Whether its parser reads the argument by parse_argument().
};

/// The row with this name; else an error that lists all.
[[nodiscard]] Result<const CodecParser*> find_parser(const SpecParts& parts);

}  // namespace fl
