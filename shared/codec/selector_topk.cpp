#include "shared/base/error.hpp"
#include "shared/codec/selector.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl {

namespace {

class Topk final : public Selector {
 public:
  Topk(double fraction, TopkScope scope) : fraction_(fraction), scope_(scope) {
    FL_ASSERT(fraction > 0 && fraction <= 1);
  }

  std::string spec() const override {
    return fmt::format("topk:{}{}", fraction_, scope_ == TopkScope::global ? ",scope=global" : "");
  }

  std::size_t selected_max(std::uint64_t tensor_elements,
                           std::size_t block_elements) const override {
    if (scope_ == TopkScope::global) return block_elements;
    return std::min<std::size_t>(block_elements, share_of(tensor_elements));
  }

  SelectionPlan plan(const Layout& layout, std::span<const float> x,
                     std::span<const std::uint32_t> tensors) const override {
    std::vector<std::span<const float>> runs(layout.tensors().size());
    std::uint64_t elements = 0;
    for (const std::uint32_t t : tensors) {
      const Layout::Tensor& tensor = layout.tensors()[t];
      runs[t] = x.subspan(tensor.offset, tensor.elements);
      elements += tensor.elements;
    }
    if (scope_ == TopkScope::global) return {.cutoffs = {cutoff_of(runs, elements)}};
    SelectionPlan plan;
    for (const auto& run : runs) plan.cutoffs.push_back(cutoff_of({&run, 1}, run.size()));
    return plan;
  }

  void select(std::span<const float> x, const Block& block, std::uint64_t, SelectionPlan& plan,
              Selected& out) const override {
    select_by(plan.cutoffs[scope_ == TopkScope::global ? 0 : block.tensor], x, out);
  }

 private:
  // The factor takes back what the fraction was rounded up by: 0.07 of 100 is 7, not 8.
  [[nodiscard]] std::uint64_t share_of(std::uint64_t elements) const {
    const double share = fraction_ * static_cast<double>(elements) * (1 - 0x1p-50);
    return static_cast<std::uint64_t>(std::ceil(share));
  }

  [[nodiscard]] Cutoff cutoff_of(std::span<const std::span<const float>> runs,
                                 std::uint64_t elements) const {
    if (elements == 0) return {.magnitude = 0, .ties = 0};
    Cutoff cutoff = find_largest(runs, share_of(elements));
    if (cutoff.magnitude == 0) cutoff.ties = 0;  // What is not sent decodes to 0 too.
    return cutoff;
  }

  double fraction_;
  TopkScope scope_;
};

}  // namespace

std::unique_ptr<const Selector> make_topk(double fraction, TopkScope scope) {
  return std::make_unique<Topk>(fraction, scope);
}

}  // namespace fl
