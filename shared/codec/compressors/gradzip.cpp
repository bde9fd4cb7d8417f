// SPDX-License-Identifier: Apache-2.0
// "gradzip": sends only one factor of a matrix. R spans a random subspace that both ends draw from
// a key, and only L = M R^T is sent. That is half of what powersgd sends, or less. As in GradZip,
// Cho 2021, "Gradient compression using alternating matrix factorization for large-scale deep
// learning", with one factor fixed. That the factor is random and new in each round is the
// sketching of Konecny 2016, "Federated learning: strategies for improving communication
// efficiency", section 2.
//
// All updates of a round have the same R, so a server can add up their Ls and compute one product.
// With projection=own each update has its own R: then their errors average out in part, but the
// server must compute a product for each.
//
// The rows of R are orthonormal, so L is the least-squares factor and L R a projection of M, which
// error feedback needs. Without error feedback L is scaled by columns / rank, which makes the
// result unbiased.
#include "shared/codec/compressors/low_rank.hpp"

namespace fl::codec {

namespace {

class Gradzip final : public LowRankCompressor {
 public:
  explicit Gradzip(const LowRankSettings& settings)
      : LowRankCompressor(BlockFormat::gradzip, "gradzip", settings),
        has_feedback_(settings.has_feedback) {}

 private:
  bool starts_warm() const override { return false; }  // The decoder does not know the previous R.
  void factorize(const MatrixProducts& matrix, LowRankFactors& out) const override {
    matrix.multiply(out);
    if (has_feedback_) return;
    const float scale = static_cast<float>(out.shape.cols) / static_cast<float>(out.right.rank);
    for (float& v : out.left) v *= scale;
  }

  bool has_feedback_;
};

std::unique_ptr<const Compressor> make_gradzip(const LowRankSettings& settings) {
  return std::make_unique<Gradzip>(settings);
}

}  // namespace

CompressorResult parse_gradzip(const SpecParts& parts) {
  return parse_low_rank(parts, true, make_gradzip);
}

}  // namespace fl::codec
