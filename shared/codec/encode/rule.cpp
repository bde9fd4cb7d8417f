// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/encode/rule.hpp"

#include "shared/base/spec/spec_text.hpp"
#include "shared/codec/blocks/sparse_block.hpp"
#include "shared/codec/device/device_levels.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::codec {

bool Rule::fits(std::string_view name) const {
  return pattern.empty() || fits_pattern(pattern, name);
}

bool Rule::sends_dense(const Layout::Tensor& tensor) const {
  return tensor.elements < dense_below || tensor.elements <= bare_elements_max ||
         is_statistic(tensor.name);
}

bool Rule::is_for_device(const Layout::Tensor& tensor, bool is_there) const {
  const bool is_large = tensor.elements >= device_elements_min;
  if (selector) return selector->has_cutoffs() && is_large;
  const LevelCoder* const coder = quantizer->level_coder();
  return (quantizer->plans_on_device() && is_large) ||
         (coder != nullptr && tensor.elements >= coder->elements_min() &&
          (is_there || coder->is_worth_a_copy()));
}

std::uint64_t Rule::dense_below_of(std::string_view pattern, bool has_selector) {
  return has_selector || !pattern.empty() ? dense_below_default : 0;
}

std::string Rule::spec() const {
  std::string text = pattern.empty() ? "" : pattern + "=";
  text += selector ? selector->spec() : quantizer->spec();
  if (dense_below != dense_below_of(pattern, selector != nullptr)) {
    text += fmt::format(",dense_below={}", dense_below);
  }
  if (selector && quantizer->spec() != "lossless") text += "+" + quantizer->spec();
  return text;
}

std::size_t Rule::block_bytes_max(const Layout::Tensor& tensor, const Block& block) const {
  if (!selector) return quantizer->bytes_max_of(tensor, block);
  return bytes_max_in_parts(block.elements, [&](std::size_t elements) {
    const std::size_t selected = selector->selected_max(tensor.elements, elements);
    return sparse_bytes_max(*quantizer, elements, std::min(selected, sparse_values_max(elements)));
  });
}

}  // namespace fl::codec
