// SPDX-License-Identifier: Apache-2.0
// The whole model of a client as its trainer sees it, made of two vectors: what travels and what
// stays here (personal tensors). A PartsSource joins them, a PartsSink takes them apart, in
// stretches. RunLayout::stretches says which elements belong to which.
#pragma once

#include "client/learn/values.hpp"
#include "shared/algorithm/strategy.hpp"
#include "shared/base/error.hpp"
#include "shared/params/read_values.hpp"
#include "shared/params/write_values.hpp"

#include <cstdint>
#include <span>
#include <utility>

namespace fl::client {

[[nodiscard]] ReadValues read_from(std::span<const float> values);
[[nodiscard]] ReadValues read_zeros();
[[nodiscard]] WriteValues drop_values();

class PartsSource final : public ValueSource {
 public:
  /// `layout` must outlive it.
  PartsSource(const RunLayout& layout, ReadValues travels, ReadValues stays)
      : layout_(layout), travels_(std::move(travels)), stays_(std::move(stays)) {}
  /// A model without personal tensors; `whole` must outlive it.
  PartsSource(const RunLayout& layout, std::span<const float> whole)
      : PartsSource(layout, read_from(whole), read_zeros()) {
    whole_ = whole;
  }

  [[nodiscard]] std::uint64_t elements() const override {
    return layout_.model_elements + layout_.personal_elements;
  }
  [[nodiscard]] Result<void> read(std::uint64_t first, std::span<float> out) const override;
  [[nodiscard]] std::span<const float> whole() const override { return whole_; }

 private:
  const RunLayout& layout_;
  ReadValues travels_;
  ReadValues stays_;
  std::span<const float> whole_;
};

class PartsSink final : public ValueSink {
 public:
  /// `layout` and `whole` must outlive it. `whole`: the memory of the model, where there are no
  /// personal tensors and it lies in memory; else empty.
  PartsSink(const RunLayout& layout, WriteValues travels, WriteValues stays,
            std::span<float> whole = {})
      : layout_(layout), travels_(std::move(travels)), stays_(std::move(stays)), whole_(whole) {}

  [[nodiscard]] Result<void> write(std::uint64_t first, std::span<const float> values) override;
  [[nodiscard]] std::span<float> whole() override { return whole_; }

 private:
  const RunLayout& layout_;
  WriteValues travels_;
  WriteValues stays_;
  std::span<float> whole_;
};

}  // namespace fl::client
