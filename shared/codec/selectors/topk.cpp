// SPDX-License-Identifier: Apache-2.0
// "topk": selects the elements with the largest magnitudes, in each tensor or in all tensors
// together (scope=global). It selects exactly a fraction of the elements, rounded up: among equal
// magnitudes the first elements, and never a zero. Aji and Heafield 2017, "Sparse communication for
// distributed gradient descent".
#include "shared/base/error.hpp"
#include "shared/codec/spec/table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::codec {

namespace {

enum class TopkScope { layer, global };

class Topk final : public Selector {
 public:
  Topk(double fraction, TopkScope scope) : fraction_(fraction), scope_(scope) {
    FL_ASSERT(fraction > 0 && fraction <= 1);
  }

  std::string spec() const override {
    return fmt::format("topk:{}{}", fraction_, scope_ == TopkScope::global ? ",scope=global" : "");
  }

  bool sends_few() const override { return is_few(fraction_); }

  std::size_t selected_max(std::uint64_t tensor_elements,
                           std::size_t block_elements) const override {
    if (scope_ == TopkScope::global) return block_elements;
    return std::min<std::size_t>(block_elements, share_of(tensor_elements, fraction_));
  }

  bool has_cutoffs() const override { return true; }

  SelectionPlan plan(const VectorToPlan& vector) const override {
    std::vector<std::span<const float>> runs(vector.layout->tensors().size());
    for (const std::uint32_t t : vector.tensors) runs[t] = vector.values_of(t);
    if (scope_ == TopkScope::global)
      return {.cutoffs = {largest_share(runs, fraction_, vector.device)}};
    SelectionPlan plan;
    for (const auto& run : runs)
      plan.cutoffs.push_back(largest_share({&run, 1}, fraction_, vector.device));
    return plan;
  }

  Cutoff* cutoff_of(std::uint32_t tensor, SelectionPlan& plan) const override {
    return &plan.cutoffs[scope_ == TopkScope::global ? 0 : tensor];
  }

 private:
  double fraction_;
  TopkScope scope_;
};

}  // namespace

SelectorResult parse_topk(const SpecParts& parts) {
  FL_TRY(const double fraction, parse_fraction(parts));
  auto scope = TopkScope::layer;
  for (const auto& [key, value] : parts.settings) {
    if (key != "scope") {
      return wrong(parts.whole, key, "topk has no such setting; its own is scope");
    }
    if (value != "layer" && value != "global") {
      return wrong(parts.whole, value, "scope must be layer or global");
    }
    if (value == "global") scope = TopkScope::global;
  }
  return std::make_unique<Topk>(fraction, scope);
}

}  // namespace fl::codec
