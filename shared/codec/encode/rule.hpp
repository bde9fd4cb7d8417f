// Which codec a tensor takes: the first of a codec's rules whose pattern fits the tensor's name.
#pragma once

#include "shared/codec/blocks/selector.hpp"
#include "shared/codec/core/compressor.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace fl {

/// Tensors with fewer elements are sent losslessly, if a selector or a list of rules applies to
/// them and no `dense_below` says otherwise: what they cost is nothing, and biases and the like
/// matter.
inline constexpr std::uint64_t dense_below_default = 1024;

inline constexpr std::size_t rules_max = 16;

/// Immutable; any thread.
struct Rule {
  std::string pattern;                       // Empty: of a codec without a list; fits every name.
  std::unique_ptr<const Selector> selector;  // Null: everything is sent.
  std::unique_ptr<const Compressor> quantizer;
  std::uint64_t dense_below = 0;

  /// `*` is any run of characters, also none; `?` any one.
  [[nodiscard]] bool fits(std::string_view name) const;
  /// Whether the tensor goes losslessly all the same: because it is small, or a statistic
  /// (layout.hpp), of which every value is needed.
  [[nodiscard]] bool sends_dense(const Layout::Tensor& tensor) const;
  /// dense_below when the spec does not say it.
  [[nodiscard]] static std::uint64_t dense_below_of(std::string_view pattern, bool has_selector);

  /// Of the quantizer; null also where a selector says what it gets.
  [[nodiscard]] const LevelCoder* level_coder() const {
    return selector ? nullptr : quantizer->level_coder();
  }
  /// The same of its sketches.
  [[nodiscard]] std::optional<SketchShape> summed_sketch() const {
    return selector ? std::nullopt : quantizer->summed_sketch();
  }

  /// Whether a device can do a part of encoding the tensor, and is fast at it, which is there, or
  /// else must be copied.
  [[nodiscard]] bool is_for_device(const Layout::Tensor& tensor, bool is_there) const;

  /// As Compressor::sends_few().
  [[nodiscard]] bool sends_few() const {
    return selector ? selector->sends_few() : quantizer->sends_few();
  }

  [[nodiscard]] std::string spec() const;
  /// Of a block of a tensor that is not sent dense.
  [[nodiscard]] std::size_t block_bytes_max(const Layout::Tensor& tensor, const Block& block) const;
};

}  // namespace fl
