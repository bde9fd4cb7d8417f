// What powersgd and gradzip have in common: everything but how they make a matrix's factors.
#pragma once

#include "shared/codec/blocks/low_rank_block.hpp"
#include "shared/codec/spec/table.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

struct LowRankSettings {
  std::int32_t rank;           // 1 to rank_max.
  double min_ratio = 2;        // From 1 on: a tensor's elements to those of its factors.
  bool has_feedback = false;   // Of gradzip: whether to lose the rest, or to be unbiased;
  bool has_own_right = false;  // and whether R follows from the vector's own seed.
};

/// The products of matrix.hpp of one matrix with a tensor's factors, where it lies.
class MatrixProducts {
 public:
  /// The matrix is a part of the device's vector, if there is one.
  MatrixProducts(std::span<const float> matrix, DeviceVector* device)
      : matrix_(matrix), device_(device) {}
  /// Sets factors.left by factors.right,
  void multiply(LowRankFactors& factors) const;
  /// and the other way.
  void multiply_transposed(LowRankFactors& factors) const;

 private:
  std::span<const float> matrix_;
  DeviceVector* device_;
};

/// What the methods have in common: they differ in how they make the factors.
class LowRankCompressor : public Compressor {
 public:
  LowRankCompressor(BlockFormat id, std::string_view name, const LowRankSettings& settings);

  std::string spec() const final;
  std::size_t block_bytes_max(std::size_t elements) const final;
  std::size_t bytes_max_of(const Layout::Tensor& tensor, const Block& block) const final;
  bool needs_places() const final { return true; }
  CompressorPlan plan(const VectorToPlan& vector) const final;
  bool plans_on_device() const final { return true; }
  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t seed, const CompressorPlan& plan,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const final;
  Result<bool> encode_large(std::span<const float> x, const Scan& scan, const Layout& layout,
                            const Block& block, std::uint64_t seed, const CompressorPlan& plan,
                            EncodeScratch& scratch, std::vector<std::byte>& out) const final;

 private:
  [[nodiscard]] std::uint32_t rank() const { return static_cast<std::uint32_t>(settings_.rank); }
  /// Whether a matrix' right factor is a start for the next matrix of the same tensor.
  [[nodiscard]] virtual bool starts_warm() const = 0;
  /// Sets out.left, whose room is there, and may set out.right, which is drawn.
  virtual void factorize(const MatrixProducts& matrix, LowRankFactors& out) const = 0;

  BlockFormat id_;
  std::string name_;
  LowRankSettings settings_;
};

/// RANK or RANK@ROUND: before that round matrices go dense, and a warm-up is counted from there.
/// `has_projection`: whether R may be the update's own.
[[nodiscard]] CompressorResult parse_low_rank(
    SpecParts parts, bool has_projection,
    std::unique_ptr<const Compressor> (*make)(const LowRankSettings&));

}  // namespace fl
