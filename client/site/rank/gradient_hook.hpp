// SPDX-License-Identifier: Apache-2.0
// How the gradients of a bucket become their mean over the ranks. A hook is sequential code that
// blocks: a conductor calls it for one bucket after the other, in the same order on all ranks.
#pragma once

#include "client/site/rank/ranks.hpp"

#include <cstdint>
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

  /// The part's gradient, in its shape: a view.
  [[nodiscard]] torch::Tensor view(const Part& part) const;
};

/// What a hook keeps from step to step, by name, for checkpoints.
using HookState = std::vector<std::pair<std::string, torch::Tensor>>;

class GradientHook {
 public:
  virtual ~GradientHook() = default;
  /// Replaces bucket.gradient by the mean, or what the hook makes of it; all ranks get the same
  /// bits. Throws RankFailure. After that the hook's state has no meaning until load().
  virtual void reduce(Bucket& bucket, Ranks& ranks) = 0;
  /// Copies of the state, which is this rank's own. Between two steps only.
  [[nodiscard]] virtual HookState save() const { return {}; }
  /// Goes on with a saved state. Entries that the hook does not know are ignored; what is missing
  /// starts afresh.
  virtual void load(const HookState&) {}
};

/// What each parameter's gradient lost so far, for hooks with error feedback. Buckets may be formed
/// anew (c10d's Reducer does so once, after the first step): each parameter's loss moves with it.
class Residuals {
 public:
  /// A flat tensor like bucket.gradient, to be added to it and to be overwritten with the new loss.
  /// Zero where there is none yet. Valid until the next call.
  [[nodiscard]] torch::Tensor& of(const Bucket& bucket);
  void save(HookState& state) const;
  void load(const HookState& state);

 private:
  struct Entry {
    std::vector<Bucket::Part> parts;
    torch::Tensor values;
  };
  torch::Tensor take(const Bucket::Part& part);

  std::vector<Entry> entries_;
};

}  // namespace fl
