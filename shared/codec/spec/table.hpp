// The table of all codecs. A codec is its file in compressors/ or selectors/, one row in table.cpp,
// and its file's name in CMakeLists.txt (docs/design/adding-a-codec.md).
#pragma once

#include "shared/codec/core/block_format.hpp"
#include "shared/codec/spec/spec_parts.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

namespace fl {

/// Makes the compressor, or the selector, that a part of a spec names.
using ParseCompressor = CompressorResult(const SpecParts& parts);
using ParseSelector = SelectorResult(const SpecParts& parts);

/// A few rows, for a table that is made when it is compiled.
class FormatList {
 public:
  constexpr FormatList() = default;
  constexpr FormatList(std::initializer_list<FormatRow> rows) : size_(rows.size()) {
    std::ranges::copy(rows, rows_.begin());
  }
  [[nodiscard]] constexpr const FormatRow* begin() const { return rows_.data(); }
  [[nodiscard]] constexpr const FormatRow* end() const { return rows_.data() + size_; }

 private:
  std::array<FormatRow, 4> rows_{};
  std::size_t size_ = 0;
};

struct CodecRow {
  std::string_view name;
  std::string_view usage;
  std::string_view about;
  std::string_view example;  // A spec that parses, in canonical form.
  /// Exactly one of the two parsers is set: a codec is a compressor or a selector.
  ParseCompressor* parse = nullptr;
  ParseSelector* parse_selector = nullptr;
  /// Whether its parser reads the argument by parse_argument(), so that a warm-up can change it.
  bool warms_up = false;
  /// The formats of the blocks that it writes, besides those of "none" and "lossless".
  FormatList formats = {};
};

[[nodiscard]] std::span<const CodecRow> codec_rows();

/// The row with this name. The error lists all names.
[[nodiscard]] Result<const CodecRow*> find_codec(const SpecParts& parts);

}  // namespace fl
