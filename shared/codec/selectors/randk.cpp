// SPDX-License-Identifier: Apache-2.0
// "randk": random sparsity. It draws a fraction of each block's elements without replacement; the
// number is rounded to the nearest, and at least one.
//
// Without error feedback (RandkScale::unbiased) the values are multiplied by elements / selected,
// which makes the result unbiased (Konecny 2016, "Federated learning: strategies for improving
// communication efficiency", section 3). With error feedback (RandkScale::contracting) they are not
// scaled, because error feedback needs a contraction (Stich 2018, "Sparsified SGD with memory",
// definition 2.1): it would later subtract what the scaling added.
#include "kernels/kernels.hpp"
#include "shared/base/error.hpp"
#include "shared/codec/core/block_key.hpp"
#include "shared/codec/spec/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl::codec {

namespace {

enum class RandkScale { unbiased, contracting };

class Randk final : public Selector {
 public:
  Randk(double fraction, RandkScale scale) : fraction_(fraction), scale_(scale) {
    FL_ASSERT(fraction > 0 && fraction <= 1);
  }

  std::string spec() const override { return fmt::format("randk:{}", fraction_); }

  bool sends_few() const override { return is_few(fraction_); }
  bool draws_by_seed() const override { return true; }

  std::size_t selected_max(std::uint64_t, std::size_t block_elements) const override {
    const double share = std::floor(fraction_ * static_cast<double>(block_elements) + 0.5);
    return std::max<std::size_t>(1, static_cast<std::size_t>(share));
  }

  void select(std::span<const float> x, const Block& block, std::uint64_t seed, SelectionPlan&,
              Selected& out) const override {
    out.key = block_key(seed, KeyFamily::selector, block);
    out.indices = random_indices(*out.key, x.size(), selected_max(x.size(), x.size()), out.room);
    const float factor = scale_ == RandkScale::unbiased
                             ? static_cast<float>(x.size()) / static_cast<float>(out.indices.size())
                             : 1.0f;
    out.values.resize(out.indices.size());
    for (std::size_t i = 0; i < out.values.size(); ++i) out.values[i] = x[out.indices[i]] * factor;
  }

 private:
  double fraction_;
  RandkScale scale_;
};

}  // namespace

SelectorResult parse_randk(const SpecParts& parts) {
  FL_TRY(const double fraction, parse_fraction(parts));
  FL_CHECK(check_no_settings(parts));
  return std::make_unique<Randk>(
      fraction, parts.error_feedback ? RandkScale::contracting : RandkScale::unbiased);
}

std::span<const std::uint32_t> random_indices(std::uint64_t key, std::size_t n, std::size_t k,
                                              std::vector<std::uint32_t>& room) {
  FL_ASSERT(k >= 1 && k <= n && n <= block_elements_max);
  room.resize(std::max(room.size(), 2 * n));
  const auto words = std::span(room).first(n);
  kernels().random_words(key, 0, words.data(), n);
  std::uint32_t* const indices = room.data() + n;
  Cutoff cutoff = find_largest(words, k);
  return {indices, select_largest(words, cutoff, indices)};
}

}  // namespace fl::codec
