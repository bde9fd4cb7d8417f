// SPDX-License-Identifier: Apache-2.0
// The common part of powersgd and gradzip. They differ only in how they make a matrix's factors.
#pragma once

#include "shared/codec/blocks/low_rank_block.hpp"
#include "shared/codec/spec/table.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl::codec {

struct LowRankSettings {
  std::int32_t rank;           // 1 to rank_max.
  double min_ratio = 2;        // At least 1. A tensor with fewer elements than this times those of
                               // its factors is sent dense.
  bool has_feedback = false;   // With error feedback. gradzip is then a projection, else unbiased.
  bool has_own_right = false;  // For gradzip: R follows from the vector's own seed.
};

/// Multiplies a matrix with a tensor's factors (kernels/generic/matrix.hpp), on the device if
/// possible.
class MatrixProducts {
 public:
  /// If `device` is not null, the matrix must be a part of its vector.
  MatrixProducts(std::span<const float> matrix, DeviceVector* device)
      : matrix_(matrix), device_(device) {}
  /// factors.left = M * the transpose of factors.right.
  void multiply(LowRankFactors& factors) const;
  /// factors.right = the transpose of factors.left * M.
  void multiply_transposed(LowRankFactors& factors) const;

 private:
  std::span<const float> matrix_;
  DeviceVector* device_;
};

/// The base class of powersgd and gradzip.
class LowRankCompressor : public Compressor {
 public:
  LowRankCompressor(BlockFormat id, std::string_view name, const LowRankSettings& settings);

  std::string spec() const final;
  std::size_t block_bytes_max(std::size_t elements) const final;
  std::size_t bytes_max_of(const Layout::Tensor& tensor, const Block& block) const final;
  bool needs_places() const final { return true; }
  CompressorPlan plan(const VectorToPlan& vector) const final;
  bool plans_on_device() const final { return true; }
  std::optional<FactorForm> factor_form(const Layout::Tensor& tensor) const final;
  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t seed, const CompressorPlan& plan,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const final;
  Result<bool> encode_large(std::span<const float> x, const Scan& scan, const Layout& layout,
                            const Block& block, std::uint64_t seed, const CompressorPlan& plan,
                            EncodeScratch& scratch, std::vector<std::byte>& out) const final;

 private:
  [[nodiscard]] std::uint32_t rank() const { return static_cast<std::uint32_t>(settings_.rank); }
  /// Whether the next matrix of a tensor starts with this matrix's right factor, from a CodecState.
  [[nodiscard]] virtual bool starts_warm() const = 0;
  /// Computes out.left, which already has its size, from out.right. May then change out.right.
  virtual void factorize(const MatrixProducts& matrix, LowRankFactors& out) const = 0;

  BlockFormat id_;
  std::string name_;
  LowRankSettings settings_;
};

/// Parses the argument RANK or RANK@ROUND. Before that round the codec is "none", and a warm-up
/// begins with that round. `has_projection`: whether the setting projection is allowed.
[[nodiscard]] CompressorResult parse_low_rank(
    SpecParts parts, bool has_projection,
    std::unique_ptr<const Compressor> (*make)(const LowRankSettings&));

}  // namespace fl::codec
