// SPDX-License-Identifier: Apache-2.0
// A rule of a codec: how the tensors are coded whose names fit its pattern. A tensor takes the
// first rule that fits.
#pragma once

#include "shared/codec/blocks/selector.hpp"
#include "shared/codec/core/compressor.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace fl::codec {

/// The default of dense_below for a rule with a selector and for a list of rules: tensors with
/// fewer elements are sent losslessly. Such tensors, biases for example, cost almost no bytes but
/// matter.
inline constexpr std::uint64_t dense_below_default = 1024;

inline constexpr std::size_t rules_max = 1000;

/// Immutable; any thread.
struct Rule {
  std::string pattern;                       // Empty: the codec is no list; fits every name.
  std::unique_ptr<const Selector> selector;  // Null: all elements are sent.
  std::unique_ptr<const Compressor> quantizer;
  std::uint64_t dense_below = 0;

  /// `*` stands for any characters, or none; `?` for exactly one.
  [[nodiscard]] bool fits(std::string_view name) const;
  /// Whether the tensor is sent losslessly despite the rule: it is small, or bare (block_map.hpp),
  /// or it is a statistic (layout.hpp), of which every value is needed.
  [[nodiscard]] bool sends_dense(const Layout::Tensor& tensor) const;
  /// The value of dense_below if the spec does not set it.
  [[nodiscard]] static std::uint64_t dense_below_of(std::string_view pattern, bool has_selector);

  /// The quantizer's level coder; null if there is a selector.
  [[nodiscard]] const LevelCoder* level_coder() const {
    return selector ? nullptr : quantizer->level_coder();
  }
  /// The quantizer's summed sketch; nullopt if there is a selector.
  [[nodiscard]] std::optional<SketchShape> summed_sketch() const {
    return selector ? std::nullopt : quantizer->summed_sketch();
  }

  /// The quantizer's factors of the tensor; nullopt if there is a selector.
  [[nodiscard]] std::optional<FactorForm> factor_form(const Layout::Tensor& tensor) const {
    return selector ? std::nullopt : quantizer->factor_form(tensor);
  }

  /// Whether all vectors that are added up select the same elements, and so take the shared seed
  /// and the shared steps.
  [[nodiscard]] bool draws_for_all() const {
    return selector && selector->draws_by_seed() && quantizer->lane_bits() > 0;
  }
  /// The quantizer's lane_bits() if its levels can be added up; 0 if a selector chooses by values.
  [[nodiscard]] int lane_bits() const {
    return selector && !draws_for_all() ? 0 : quantizer->lane_bits();
  }

  /// Whether a device can do a part of encoding the tensor and saves time. `is_there`: the tensor
  /// lies on the device already; otherwise it must be copied there.
  [[nodiscard]] bool is_for_device(const Layout::Tensor& tensor, bool is_there) const;

  /// As Compressor::sends_few().
  [[nodiscard]] bool sends_few() const {
    return selector ? selector->sends_few() : quantizer->sends_few();
  }

  [[nodiscard]] std::string spec() const;
  /// The most bytes of a block of a tensor that is not sent dense.
  [[nodiscard]] std::size_t block_bytes_max(const Layout::Tensor& tensor, const Block& block) const;
};

}  // namespace fl::codec
