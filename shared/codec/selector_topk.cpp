#include "shared/base/error.hpp"
#include "shared/codec/selector.hpp"

#include <fmt/format.h>

#include <algorithm>

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
    return std::min<std::size_t>(block_elements, share_of(tensor_elements, fraction_));
  }

  SelectionPlan plan(const Layout& layout, std::span<const float> x,
                     std::span<const std::uint32_t> tensors, CodecState*) const override {
    std::vector<std::span<const float>> runs(layout.tensors().size());
    for (const std::uint32_t t : tensors) {
      const Layout::Tensor& tensor = layout.tensors()[t];
      runs[t] = x.subspan(tensor.offset, tensor.elements);
    }
    if (scope_ == TopkScope::global) return {.cutoffs = {largest_share(runs, fraction_)}};
    SelectionPlan plan;
    for (const auto& run : runs) plan.cutoffs.push_back(largest_share({&run, 1}, fraction_));
    return plan;
  }

  void select(std::span<const float> x, const Block& block, std::uint64_t, SelectionPlan& plan,
              Selected& out) const override {
    select_by(plan.cutoffs[scope_ == TopkScope::global ? 0 : block.tensor], x, out);
  }

 private:
  double fraction_;
  TopkScope scope_;
};

}  // namespace

std::unique_ptr<const Selector> make_topk(double fraction, TopkScope scope) {
  return std::make_unique<Topk>(fraction, scope);
}

}  // namespace fl
