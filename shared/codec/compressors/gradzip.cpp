// One factor of a matrix: R is a random subspace that both ends draw from a key, and only L = M R^T
// travels, half of what powersgd sends and less. As GradZip, Cho 2021, "Gradient compression using
// alternating matrix factorization for large-scale deep learning", with one factor fixed; that it
// is fixed by chance, and anew in each round, is the sketching of Konecny 2016, "Federated
// learning: strategies for improving communication efficiency", section 2.
//
// All updates of a round have the same R, so a server adds up their Ls and makes one matrix of the
// sum. With projection=own each has its own: what they lose then averages out in part, and the
// server has a matrix to make of each.
//
// R's rows are orthonormal, so L is the least-squares factor, and L R the projection of M, which
// error feedback needs. Without that L is scaled by columns / rank, so that the mean is right.
#include "shared/codec/compressors/low_rank.hpp"

namespace fl {

namespace {

class Gradzip final : public LowRankCompressor {
 public:
  explicit Gradzip(const LowRankSettings& settings)
      : LowRankCompressor(BlockFormat::gradzip, "gradzip", settings),
        has_feedback_(settings.has_feedback) {}

 private:
  bool starts_warm() const override { return false; }  // The decoder could not follow.
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

}  // namespace fl
