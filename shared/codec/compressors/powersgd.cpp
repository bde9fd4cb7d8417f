// SPDX-License-Identifier: Apache-2.0
// "powersgd": "PowerSGD: practical low-rank gradient compression for distributed optimization",
// Vogels 2019, algorithm 1 with one worker. It starts with some R, makes L = M R^T orthonormal, and
// sets R = L^T M. This is one step of the power method towards the best approximation of this rank.
// The result is a projection of M, so it suits error feedback.
//
// The first R is that of the previous round if a CodecState has it, so that the steps add up over
// the rounds (section 4.2). Else it is random, the same for all clients of a round. As in PyTorch's
// powerSGD_hook, R is made orthonormal too, and a matrix is sent dense if its factors have more
// than half (1 / min_ratio) of its elements. Like its start_powerSGD_iter, a spec can say from
// which round on matrices are compressed, because early updates are large.
//
// Gram-Schmidt often adds an epsilon to the norms that it divides by, but that makes small updates
// smaller. Instead, orthonormalize() replaces vectors that depend on others by zeros.
#include "shared/codec/compressors/low_rank.hpp"

namespace fl::codec {

namespace {

class Powersgd final : public LowRankCompressor {
 public:
  explicit Powersgd(const LowRankSettings& settings)
      : LowRankCompressor(BlockFormat::powersgd, "powersgd", settings) {}

 private:
  bool starts_warm() const override { return true; }
  void factorize(const MatrixProducts& matrix, LowRankFactors& out) const override {
    matrix.multiply(out);
    orthonormalize(out.left, out.shape.rows);
    matrix.multiply_transposed(out);
  }
};

std::unique_ptr<const Compressor> make_powersgd(const LowRankSettings& settings) {
  return std::make_unique<Powersgd>(settings);
}

}  // namespace

CompressorResult parse_powersgd(const SpecParts& parts) {
  return parse_low_rank(parts, false, make_powersgd);
}

}  // namespace fl::codec
