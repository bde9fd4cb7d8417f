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

namespace fl::site {

/// The gradients that c10d's Reducer hands over at once.
struct Bucket {
  struct Part {
    std::int64_t parameter = 0;  // An index into the model's list of parameters.
    std::int64_t offset = 0;     // The place of its first element in `gradient`.
    std::vector<std::int64_t> shape = {};
    [[nodiscard]] std::int64_t elements() const;
    bool operator==(const Part&) const = default;
  };

  std::size_t index = 0;  // Counts a step's buckets from 0.
  bool is_last = false;   // This is the last bucket of the step.
  /// Flat, of floats. In: this rank's gradients; out: their mean over the ranks.
  torch::Tensor gradient = {};
  /// The parameters in the bucket, in the order of their offsets, without gaps.
  std::vector<Part> parts = {};

  /// Names the parameters in it, in their order: "3,2,1". The buckets of a group stay as they are,
  /// but a later group may have buckets of another size, so an index does not name a bucket.
  [[nodiscard]] std::string key() const;
  /// The part's gradient, in its shape: a view.
  [[nodiscard]] torch::Tensor view(const Part& part) const;
};

/// The tensors that a hook keeps from step to step, by name, for checkpoints.
using HookState = std::vector<std::pair<std::string, torch::Tensor>>;
/// A state that has only the number of steps, as "step".
[[nodiscard]] HookState state_with_step(std::int64_t step);
/// The number of steps in a state; 0 if it has none.
[[nodiscard]] std::int64_t step_in(const HookState& state);

class GradientHook {
 public:
  virtual ~GradientHook() = default;
  /// Replaces bucket.gradient by the mean, or by what the hook makes of it. All ranks get the same
  /// bits, except with local hooks (HookRow::is_local). Throws RankFailure; then the hook's state
  /// has no meaning until load().
  virtual void reduce(Bucket& bucket, Ranks& ranks) = 0;
  /// Called after each step of the optimizer, like reduce(); is_last: no other step follows in this
  /// round, so the parameters must become the same on all ranks. Throws RankFailure.
  virtual void after_step(const std::vector<torch::Tensor>& parameters, bool is_last,
                          Ranks& ranks) {
    (void)parameters, (void)is_last, (void)ranks;
  }
  /// The format in which gradients travel, if the hook does nothing but sum them up: then ranks may
  /// as well get only their parts of the mean (shards/gathered_unit.hpp).
  [[nodiscard]] virtual std::optional<torch::ScalarType> plain_format() const { return {}; }
  /// Copies the state, which is this rank's own. Only between two steps.
  [[nodiscard]] virtual HookState save() const { return {}; }
  /// Goes on with a saved state. Entries that the hook does not know are ignored; what is missing
  /// starts afresh.
  virtual void load(const HookState&) {}
};

/// Keeps a value for each element of the gradients from step to step, as error feedback does.
/// Values belong to parameters: they stay right when a later group divides the parameters into
/// other buckets.
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

}  // namespace fl::site
