// SPDX-License-Identifier: Apache-2.0
// DataSet: examples as every reader gives them and every built-in trainer takes them. Readers fill
// one; afterwards nothing changes it. Any thread.
#pragma once

#include "client/learn/data/storage.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace fl {

/// A text is a sequence of tokens: its bytes, or the numbers that a tokenizer has made of it. An
/// example of a set of texts is a piece of one; its tokens but the first are to be predicted. Two
/// neighbouring pieces share a token, which the first one has to predict.
struct TextPiece {
  std::uint64_t begin = 0;   // The place of the first token in DataSet::inputs.
  std::uint32_t length = 0;  // In tokens, at least 2.
  friend bool operator==(const TextPiece&, const TextPiece&) = default;
};
/// Tokens of a piece that are predicted, unless its text ends before; and what piece= may say.
inline constexpr std::uint32_t piece_tokens_default = 1024;
inline constexpr std::uint32_t piece_tokens_max = 1 << 20;

struct DataSet {
  enum class Kind {
    pixels,  // Bytes, 0 to 255, which stand for 0 to 1. The shape is channels, rows, columns.
    values,  // fp32, any shape, plus input_offsets. A NaN is a missing value.
    text,    // Tokens, in `pieces`. The shape is the most that a piece has.
  };
  Kind kind = Kind::values;
  std::vector<std::int64_t> shape = {};  // The shape of one example.
  /// The examples one after another, each row_bytes() long; of text the tokens of all texts.
  Storage inputs = {};
  /// values: what to add to each value of an example, where fp32 alone would be too coarse
  /// (ShiftedValues); empty if nothing.
  std::vector<double> input_offsets = {};
  std::vector<std::string> input_names = {};  // One for each value of an example, or none.

  // What a model learns to predict: classes or values. A set of texts has neither. Whole numbers
  // that may be either (a column "y" with 0 and 1) are in both. A set that was read to predict
  // these has none of them, but may know how many classes there are, and their names.
  std::vector<std::uint32_t> labels = {};  // The class of each example.
  std::uint32_t classes = 0;               // Labels are less; 0: not known.
  std::vector<float> targets = {};         // `outputs` values of each example, never NaN.
  std::uint32_t outputs = 0;
  std::vector<double> target_offsets = {};     // As input_offsets, of each of `outputs`.
  std::vector<std::string> target_names = {};  // As input_names.
  std::vector<std::string> class_names = {};   // One for each of `classes`, or none.

  std::vector<TextPiece> pieces = {};
  std::uint32_t token_bytes = 1;   // text: 1 of bytes, 2 or 4 of numbers, little-endian.
  std::uint32_t vocabulary = 256;  // text: tokens are less than this.

  /// The group of each example, for the partition by:COLUMN; empty if there is none. Groups are
  /// numbered in the order of their names' bytes.
  std::vector<std::uint32_t> groups = {};
  std::vector<std::string> group_names = {};

  /// The name of each example, of a set that was read to predict: its file, or the name of its row;
  /// or none. And what these are, as the heading of a column: "file", "name".
  std::vector<std::string> example_names = {};
  std::string example_heading = {};

  std::string source = {};  // The text of --data, for messages.

  [[nodiscard]] std::uint64_t row_elements() const;  // Values of an example's input.
  [[nodiscard]] std::uint64_t row_bytes() const;     // Not of text.
  [[nodiscard]] std::uint32_t size() const;
  [[nodiscard]] std::span<const std::byte> row(std::uint64_t example) const;
  /// A set of its own with these examples, in this order. Each index must be < size().
  [[nodiscard]] DataSet select(std::span<const std::uint32_t> indices) const;
};

/// The token at a place of `tokens`, each of so many bytes (DataSet::token_bytes).
[[nodiscard]] inline std::uint32_t token_at(std::span<const std::byte> tokens, std::size_t place,
                                            std::uint32_t bytes) {
  std::uint32_t token = 0;  // Little-endian, as all machines here are.
  std::memcpy(&token, tokens.data() + place * bytes, bytes);
  return token;
}

/// The shape of the examples and of what is learnt from them: "1x28x28 pixels, 10 classes",
/// "13 values, 1 target", "text".
[[nodiscard]] std::string data_shape_text(const DataSet& set);

/// "3x32x32", for messages and model specs.
[[nodiscard]] std::string shape_text(std::span<const std::int64_t> shape);

}  // namespace fl
