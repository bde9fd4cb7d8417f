// The picture of a comparison of codecs: what they lose against what they cost, as SVG.
#pragma once

#include <span>
#include <string>

namespace fl::bench {

struct RateMark {
  std::string label;
  double bits;  // A value, > 0.
  double nmse;  // Of a Gaussian vector.
  bool is_biased;
};

/// Both axes are logarithmic; the line is the rate-distortion bound 2^(-2 bits). Marks without an
/// error have no place on it and are named below it.
[[nodiscard]] std::string rate_plot(std::span<const RateMark> marks);

}  // namespace fl::bench
