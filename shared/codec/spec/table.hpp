// SPDX-License-Identifier: Apache-2.0
// The codec table: one row for each compressor and selector. To add a codec, write its file in
// compressors/ or selectors/, add a row in table.cpp, and add the file to CMakeLists.txt
// (docs/design/adding-a-codec.md).
#pragma once

#include "shared/codec/core/block_format.hpp"
#include "shared/codec/spec/spec_parts.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

namespace fl::codec {

/// Makes the compressor or the selector that a part of a spec names. Errors as in spec_parts.hpp.
using ParseCompressor = CompressorResult(const SpecParts& parts);
using ParseSelector = SelectorResult(const SpecParts& parts);

inline constexpr std::size_t formats_max = 4;  // The most formats of one codec.

/// A short list of format rows that can be built at compile time.
class FormatList {
 public:
  constexpr FormatList() = default;
  constexpr FormatList(std::initializer_list<FormatRow> rows) : size_(rows.size()) {
    if (rows.size() > formats_max) throw "a codec has more formats than formats_max";
    std::ranges::copy(rows, rows_.begin());
  }
  [[nodiscard]] constexpr const FormatRow* begin() const { return rows_.data(); }
  [[nodiscard]] constexpr const FormatRow* end() const { return rows_.data() + size_; }

 private:
  std::array<FormatRow, formats_max> rows_{};
  std::size_t size_ = 0;
};

struct CodecRow {
  std::string_view name;
  std::string_view usage;    // The grammar, for help.
  std::string_view about;    // One line, for help.
  std::string_view example;  // A spec that parses, in canonical form.
  /// Exactly one of the two parsers is set: a codec is a compressor or a selector.
  ParseCompressor* parse = nullptr;
  ParseSelector* parse_selector = nullptr;
  /// Whether a warm-up can change the argument; the parser then uses parse_argument().
  bool warms_up = false;
  /// The formats of the blocks that it writes, without those of "none" and "lossless", which every
  /// codec may write.
  FormatList formats = {};
};

/// All rows, in the order in which help shows them.
[[nodiscard]] std::span<const CodecRow> codec_rows();

/// The row with the name parts.name. Errors: invalid_input, with a message that lists all names.
[[nodiscard]] Result<const CodecRow*> find_codec(const SpecParts& parts);

}  // namespace fl::codec
