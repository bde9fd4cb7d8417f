// SPDX-License-Identifier: Apache-2.0
// How the gradients of a bucket become their mean over the ranks. A hook is sequential code that
// blocks: a conductor calls it for one bucket after the other, in the same order on all ranks.
#pragma once

#include "client/site/rank/ranks.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fl {

/// The gradients that c10d's Reducer hands over at once.
struct Bucket {
  struct Part {
    std::int64_t parameter = 0;  // Its index in the model's list of parameters.
    std::int64_t offset = 0;     // Of its first element in `gradient`.
    std::vector<std::int64_t> shape = {};
    [[nodiscard]] std::int64_t elements() const;
    bool operator==(const Part&) const = default;
  };

  std::size_t index = 0;  // From 0 in each step.
  bool is_last = false;   // The last one of the step.
  /// Flat, of floats. In: this rank's gradients; out: their mean over the ranks.
  torch::Tensor gradient = {};
  /// In the order of their offsets, without gaps.
  std::vector<Part> parts = {};

  /// Names the parameters in it, in their order: "3,2,1". c10d's Reducer forms its buckets anew
  /// after the first step, so an index does not tell which bucket it is.
  [[nodiscard]] std::string key() const;
  /// The part's gradient, in its shape: a view.
  [[nodiscard]] torch::Tensor view(const Part& part) const;
};

/// What a hook keeps from step to step, by name, for checkpoints.
using HookState = std::vector<std::pair<std::string, torch::Tensor>>;

class GradientHook {
 public:
  virtual ~GradientHook() = default;
  /// Replaces bucket.gradient by the mean, or what the hook makes of it. All ranks get the same
  /// bits, but with local hooks (HookRow::is_local). Throws RankFailure. After that the hook's
  /// state has no meaning until load().
  virtual void reduce(Bucket& bucket, Ranks& ranks) = 0;
  /// Called after each step of the optimizer, like reduce(); is_last: no other step follows in this
  /// round, so the parameters must become the same on all ranks. Throws RankFailure.
  virtual void after_step(std::vector<torch::Tensor>& parameters, bool is_last, Ranks& ranks) {
    (void)parameters, (void)is_last, (void)ranks;
  }
  /// Copies of the state, which is this rank's own. Between two steps only.
  [[nodiscard]] virtual HookState save() const { return {}; }
  /// Goes on with a saved state. Entries that the hook does not know are ignored; what is missing
  /// starts afresh.
  virtual void load(const HookState&) {}
};

/// A value for each element of the gradients, from step to step, such as what error feedback keeps.
/// Buckets may be formed anew: each parameter's values move with it.
class Residuals {
 public:
  /// `prefix` begins the names in a HookState. The values lie on `device`, or where the gradients
  /// do.
  explicit Residuals(std::string prefix = "residual/", std::optional<torch::Device> device = {})
      : prefix_(std::move(prefix)), device_(device) {}

  /// A flat tensor like bucket.gradient, to be overwritten with new values. Zero where there are
  /// none yet. Valid until the next call.
  [[nodiscard]] torch::Tensor& of(const Bucket& bucket);
  void save(HookState& state) const;
  void load(const HookState& state);

 private:
  struct Entry {
    std::vector<Bucket::Part> parts;
    torch::Tensor values;
  };
  torch::Tensor take(const Bucket::Part& part);

  std::string prefix_;
  std::optional<torch::Device> device_;
  std::vector<Entry> entries_;
};

}  // namespace fl
