// SPDX-License-Identifier: Apache-2.0
// Layout: the names and shapes of a model's tensors, in the order of their values in one flat fp32
// vector. Server and clients of a run use the same layout and compare its digest. Any thread.
#pragma once

#include "shared/base/io/digest.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// Whether a tensor of this name is a statistic of a BatchNorm, not a parameter. As in PyTorch, the
/// last part of its name is running_mean or running_var. A statistic has no gradient. Whatever the
/// method, the server averages the clients' values, and they are coded without loss.
[[nodiscard]] bool is_statistic(std::string_view tensor);

struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;  // A scalar has an empty shape.
  bool operator==(const TensorSpec&) const = default;
};

class Layout {
 public:
  struct Tensor {
    std::string name;
    std::vector<std::int64_t> shape;
    std::uint64_t offset;  // Index of the first element in the flat vector.
    std::uint64_t elements;
  };

  Layout() = default;
  /// A name is any text in UTF-8 of 1 to limits::tensor_name_bytes_max bytes, none of which is
  /// zero, but not __metadata__. Errors: invalid_input for a wrong or repeated name and for
  /// negative sizes; too_large for anything over its limit, such as limits::parameters_max.
  static Result<Layout> make(const std::vector<TensorSpec>& specs);

  /// Elements [begin, end) of the flat vector.
  struct Stretch {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  /// The range from the first statistic to the end of the last one; empty if there is none. In the
  /// layout of a run this range holds statistics only (run_layout() in
  /// shared/algorithm/strategy.hpp).
  [[nodiscard]] const Stretch& statistics() const { return statistics_; }
  [[nodiscard]] std::uint64_t elements() const { return elements_; }
  [[nodiscard]] std::uint64_t bytes() const { return elements_ * sizeof(float); }
  /// The digest of names and shapes, in order.
  [[nodiscard]] const Digest& digest() const { return digest_; }
  /// Names an element by its index in the flat vector, for error messages: "conv1.weight[3]".
  /// `index` < elements().
  [[nodiscard]] std::string describe(std::uint64_t index) const;

 private:
  std::vector<Tensor> tensors_;
  std::uint64_t elements_ = 0;
  Stretch statistics_;
  Digest digest_;
};

/// The digest of the same tensors sorted by name, the statistics last. It is equal for two layouts
/// that differ only in the order.
[[nodiscard]] Digest digest_in_any_order(const Layout& layout);

/// The first three differences between a run's tensors and those of a client, as text; or that one
/// side's names have something before them, as wrappers of PyTorch put it. `is_whole` is false if
/// the client has more tensors than it told. The client's names may be any text.
[[nodiscard]] std::string describe_differences(const Layout& run, std::span<const TensorSpec> told,
                                               bool is_whole);

}  // namespace fl
