// SPDX-License-Identifier: Apache-2.0
// A simple and slow implementation of a round's sums, straight from their definition. check.cpp
// compares the server's models with it.
#pragma once

#include "server/sums/accumulator.hpp"
#include "shared/codec/blocks/decode.hpp"
#include "tests/support/payload_blocks.hpp"
#include "tests/support/plain_sketch.hpp"
#include "tests/support/plain_sums.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::codec;
using namespace fl::server;

/// The weighted mean of the accepted updates (sum_range.hpp defines it).
class ExactSum {
 public:
  explicit ExactSum(const Layout& layout) : layout_(layout) {}

  /// Adds the factors of a gradzip update whose right factors follow from `shared_seed`. The server
  /// adds them undecoded (factor_sums.hpp). Reads them from the payload's bytes as reader.hpp and
  /// low_rank_block.hpp describe them. Sets these matrices to 0 in `values`, the decoded update.
  void take_factors(const Layout& layout, std::uint64_t shared_seed, const std::string& payload,
                    std::span<float> values, std::uint64_t weight) {
    const auto number = [&payload]<class T>(T, std::size_t at) {
      T out;
      std::memcpy(&out, payload.data() + at, sizeof out);
      return out;
    };
    const std::uint64_t block_elements = number(std::uint32_t{}, 4);
    const auto is_bare = [&](const Layout::Tensor& tensor) {
      return payload[3] == '4' && tensor.elements <= 2;
    };
    std::uint64_t blocks = 0;
    for (const auto& tensor : layout.tensors()) {
      if (!is_bare(tensor)) blocks += (tensor.elements + block_elements - 1) / block_elements;
    }
    std::size_t at = 16 + 4 * blocks;
    std::size_t block = 0;
    for (std::uint32_t t = 0; t < layout.tensors().size(); ++t) {
      const auto& tensor = layout.tensors()[t];
      if (is_bare(tensor)) {
        at += 4 * tensor.elements;
        continue;
      }
      const bool may_be_matrix = tensor.shape.size() > 1 && !is_statistic(tensor.name);
      const std::uint64_t rows = may_be_matrix ? static_cast<std::uint64_t>(tensor.shape[0]) : 1;
      const std::uint64_t cols = tensor.elements / rows;
      Factors* factors = nullptr;
      for (std::uint64_t first = 0; first < tensor.elements; first += block_elements, ++block) {
        const std::uint64_t rank = number(std::uint8_t{}, at + 1);
        if (first == 0 && may_be_matrix && payload[at] == 29 &&
            number(std::uint64_t{}, at + 2) == shared_key(shared_seed, t) &&
            (rows + cols) * rank * 4 <= tensor.elements) {
          factors = &factors_[tensor.offset];
          factors->rows = rows;
          factors->cols = cols;
          factors->left.add(std::vector<float>(rank * rows), weight);
          if (factors->right.size() < rank * cols) {
            factors->right =
                drawn_right(shared_key(shared_seed, t), static_cast<std::uint32_t>(rank), cols);
          }
          std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(tensor.offset), tensor.elements,
                      0.0f);
        }
        const std::uint32_t size = number(std::uint32_t{}, 16 + 4 * block);
        if (factors != nullptr) {
          const std::size_t head = first == 0 ? 10 : 2;
          const std::uint64_t last = std::min(first + block_elements, tensor.elements) - 1;
          const std::uint64_t touched = last / cols - first / cols + 1;
          std::vector<float> left(rank * touched);
          DecodeScratch scratch;
          const Bytes bytes = bytes_of(std::string_view(payload)).subspan(at, size);
          decode_lossless_block(bytes.subspan(head), left, scratch).value();
          // A block adds only the rows that begin in it.
          for (std::uint64_t row = (first + cols - 1) / cols; row <= last / cols; ++row) {
            for (std::uint64_t k = 0; k < rank; ++k) {
              factors->left.updates.back().values[k * rows + row] =
                  left[k * touched + row - first / cols];
            }
          }
        }
        at += size;
      }
    }
  }

  /// Adds the update's sketches, which the server adds undecoded (sketch_sums.hpp). Sets their
  /// blocks to 0 in `values`, the decoded update.
  void take_sketches(const Layout& layout, Bytes payload, std::span<float> values,
                     std::uint64_t weight) {
    testing::for_each_block(layout, payload, [&](const Block& block, Bytes bytes) {
      if (bytes[0] != std::byte{39}) return;
      sketches_[block.flat].add(bytes, block.elements, weight);
      std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(block.flat), block.elements, 0.0f);
    });
  }

  /// `weight` is the discounted weight, `whole` the weight without discount, in the same units.
  void add(std::span<const float> values, std::uint64_t weight, std::uint64_t whole) {
    for (const auto& tensor : layout_.tensors()) {
      for (std::uint64_t first = 0; first < tensor.elements; first += 65536) {
        const std::uint64_t flat = tensor.offset + first;
        blocks_[flat].add(
            values.subspan(flat, std::min<std::uint64_t>(65536, tensor.elements - first)), weight);
      }
    }
    weight_ += weight;
    whole_ += whole;
  }

  [[nodiscard]] std::vector<float> mean() const {
    std::vector<float> out(layout_.elements());
    const auto divisor = static_cast<double>(whole_);
    for (const auto& [flat, block] : blocks_)
      std::ranges::copy(block.mean(weight_, divisor),
                        out.begin() + static_cast<std::ptrdiff_t>(flat));
    for (const auto& [offset, of] : factors_) {
      const auto left = of.left.mean(weight_, divisor);
      for (std::uint64_t i = 0; i < of.rows * of.cols; ++i) {
        for (std::uint64_t k = 0; k < left.size() / of.rows; ++k)
          out[offset + i] += left[k * of.rows + i / of.cols] * of.right[k * of.cols + i % of.cols];
      }
    }
    for (const auto& [flat, sketch] : sketches_) {
      const auto recovered = sketch.recovered(weight_, divisor);
      for (std::size_t i = 0; i < recovered.size(); ++i) out[flat + i] += recovered[i];
    }
    return out;
  }

 private:
  /// The sums for one matrix: the sum of the left factors, and the right factor that all updates
  /// share.
  struct Factors {
    std::uint64_t rows = 0;
    std::uint64_t cols = 0;
    testing::PlainSums left;
    std::vector<float> right;
  };

  const Layout& layout_;
  std::map<std::uint64_t, testing::PlainSums> blocks_;      // By the block's offset.
  std::map<std::uint64_t, Factors> factors_;                // By the matrix's offset.
  std::map<std::uint64_t, testing::PlainSketch> sketches_;  // By the block's offset.
  std::uint64_t weight_ = 0;
  std::uint64_t whole_ = 0;
};

}  // namespace fl::test
