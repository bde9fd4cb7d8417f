// The names and shapes of a model's tensors, in the order in which their values lie in one flat
// fp32 vector. Both ends of a federation hold the same layout, told by its digest.
#pragma once

#include "shared/base/io/digest.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// Whether a tensor of that name is no parameter but what a BatchNorm has counted, by PyTorch's
/// names: its last part is running_mean or running_var. No gradient moves it: clients average what
/// they have counted, whatever the method, and it is never coded with a loss.
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
  /// Refuses empty and repeated names, negative sizes, and totals past limits::parameters_max.
  static Result<Layout> make(const std::vector<TensorSpec>& specs);

  /// Elements [begin, end) of the flat vector.
  struct Stretch {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  /// From the first of its statistics to the end of the last; empty where there are none. A run's
  /// layout has nothing else in it (run_layout() in shared/algorithm/strategy.hpp).
  [[nodiscard]] const Stretch& statistics() const { return statistics_; }
  [[nodiscard]] std::uint64_t elements() const { return elements_; }
  [[nodiscard]] std::uint64_t bytes() const { return elements_ * sizeof(float); }
  /// Of names and shapes, in order.
  [[nodiscard]] const Digest& digest() const { return digest_; }
  /// "conv1.weight[3]" for a flat index, for error messages. `index` < elements().
  [[nodiscard]] std::string describe(std::uint64_t index) const;

 private:
  std::vector<Tensor> tensors_;
  std::uint64_t elements_ = 0;
  Stretch statistics_;
  Digest digest_;
};

}  // namespace fl
