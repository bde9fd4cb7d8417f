// SPDX-License-Identifier: Apache-2.0
// Buffers that encoding and decoding reuse from block to block, to avoid an allocation for each
// block. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fl::codec {

/// Buffers for the entropy coder of levels (level_coder.hpp).
struct LevelScratch {
  std::vector<std::uint8_t> symbols;
  std::vector<std::uint8_t> stream;
  std::vector<std::byte> table;
  std::vector<std::uint32_t> answers;  // adaptive_coder.cpp uses these.
  std::vector<std::uint8_t> classes;   // The caller's LevelClasses may lie here.
};

/// Buffers for count sketches, in encoding and decoding.
struct SketchScratch {
  std::vector<std::uint32_t> words;
  std::vector<std::uint32_t> selected;
  std::vector<float> estimates;
  std::vector<float> cells;
};

struct EncodeScratch {
  std::vector<std::int16_t> levels;
  std::vector<std::uint32_t> words;  // The bits of floats.
  LevelScratch coded;
  std::vector<float> rotated;
  std::vector<float> scaled;  // The values in steps (lanes).
  SketchScratch sketch;
};

struct DecodeScratch {
  std::vector<std::uint16_t> halves;
  std::vector<std::uint32_t> words;
  std::vector<std::int16_t> levels;
  LevelScratch coded;
  std::vector<std::uint32_t> indices;
  std::vector<float> values;               // The values of a sparse block.
  std::vector<std::uint32_t> run_indices;  // For ecuq's runs. They have their own buffers, because
  std::vector<float> run_values;           // they may be the values of a sparse block.
  std::vector<float> rotated;
  SketchScratch sketch;
};

}  // namespace fl::codec
