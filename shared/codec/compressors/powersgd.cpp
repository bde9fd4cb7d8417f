// "PowerSGD: practical low-rank gradient compression for distributed optimization", Vogels 2019,
// algorithm 1, of one worker: R is guessed, L = M R^T made orthonormal, then R = L^T M. That is one
// step of the power method towards the best approximation of this rank. A projection, so it suits
// error feedback. The guess is the R of the round before where a CodecState has it, so that the
// steps add up over rounds (section 4.2), else random, the same for all clients of a round. As in
// PyTorch's powerSGD_hook a matrix goes dense where its factors would be more than a half (1 /
// min_ratio) of it, and R is made orthonormal too; and as its start_powerSGD_iter does for early,
// large updates, a spec can name the round before which all is dense.
//
// Instead of adding an epsilon to the norms that Gram-Schmidt divides by, which makes small updates
// smaller, directions that depend on others are left out: orthonormalize() says how.
#include "shared/codec/compressors/low_rank.hpp"

namespace fl {

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

}  // namespace fl
