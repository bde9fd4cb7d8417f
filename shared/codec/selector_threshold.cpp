#include "shared/base/error.hpp"
#include "shared/codec/selector.hpp"

#include <fmt/format.h>

#include <bit>
#include <cmath>

namespace fl {

namespace {

class Threshold final : public Selector {
 public:
  explicit Threshold(float threshold) : threshold_(std::fabs(threshold)) {
    FL_ASSERT(threshold >= 0 && std::isfinite(threshold));
  }

  std::string spec() const override { return fmt::format("threshold:{}", threshold_); }

  std::size_t selected_max(std::uint64_t, std::size_t block_elements) const override {
    return block_elements;
  }

  void select(std::span<const float> x, const Block&, std::uint64_t, SelectionPlan&,
              Selected& out) const override {
    Cutoff cutoff = {.magnitude = std::bit_cast<std::uint32_t>(threshold_), .ties = 0};
    select_by(cutoff, x, out);
  }

 private:
  float threshold_;
};

}  // namespace

std::unique_ptr<const Selector> make_threshold(float threshold) {
  return std::make_unique<Threshold>(threshold);
}

}  // namespace fl
