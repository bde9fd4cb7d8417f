// SPDX-License-Identifier: Apache-2.0
// StepSync: ranks train one model together, step by step. Each takes a part of every batch, alone
// or together with ranks that have other layers, or parts of these or of the texts (PassGroups);
// the gradients become the mean over all parts. client/site/rank implements it. Only the files of
// fl_client_learn_torch and of the site's ranks include this header, because it brings libtorch's
// headers.
#pragma once

#include "client/learn/torch/pass_group.hpp"
#include "client/learn/torch/torch_models.hpp"

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace fl {

class HeldParameters;
class Units;

/// Another rank is lost, or did not do its part in time. An exception, because it travels out of
/// loss.backward(), through code of libtorch.
class SyncFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The thread that trains. Functions throw SyncFailure. All ranks make the same calls.
class StepSync {
 public:
  virtual ~StepSync() = default;

  /// Makes what this rank holds of a module's parameters, in place of what it had of another one.
  /// Before there is a group, too. `units`: the module's.
  [[nodiscard]] virtual std::unique_ptr<HeldParameters> hold(const Module& module,
                                                             const Layout& layout,
                                                             torch::Device device,
                                                             Units& units) = 0;
  /// The number of this rank's part of each batch, and how many there are.
  [[nodiscard]] virtual std::int64_t rank() const = 0;
  [[nodiscard]] virtual std::int64_t size() const = 0;
  /// How many ranks have gradients of other examples or tokens, of which a step takes the mean.
  [[nodiscard]] std::int64_t gradient_parts() {
    const ContextGroup* const context = groups().context;
    return size() * (context == nullptr ? 1 : context->division().ranks);
  }
  /// This rank's number among all ranks, and how many there are: more than parts of a batch, where
  /// ranks have layers or texts together.
  [[nodiscard]] virtual std::int64_t member() const = 0;
  [[nodiscard]] virtual std::int64_t members() const = 0;
  /// The ranks that take each pass together with this one. Always the same, before there is a
  /// group, too.
  [[nodiscard]] virtual PassGroups groups() = 0;
  /// Call before each forward pass. `parameters`: what is trained, always the same; their gradients
  /// are defined.
  virtual void before_forward(const std::vector<torch::Tensor>& parameters, bool is_last) = 0;
  /// Call before each batch of work that is no step: whoever waits sees that this rank goes on.
  virtual void advance() = 0;
  /// Whether ranks need each other to compute anything: then all make the same passes.
  [[nodiscard]] virtual bool passes_are_joint() const = 0;
  /// Takes the backward pass of `loss`, after that forward pass. It adds to the gradients; after
  /// one that is the step's last, each gradient is the mean, over the gradient_parts() ranks that
  /// have other parts of a batch or of its texts, of what the step's passes have added up.
  virtual void backward(const torch::Tensor& loss, bool is_last) = 0;
  /// Does a rank's work for one of the backward passes of a pipeline's step, which goes through
  /// these units and adds to their gradients, or some later work for it (PutOff).
  virtual void backward_stage(const std::vector<std::size_t>& units,
                              const std::function<void()>& work) = 0;
  /// Call after a step's last one: each gradient becomes the mean that backward() makes of it.
  /// `parameters`: as before_forward() gets them.
  virtual void reduce_stages(const std::vector<torch::Tensor>& parameters) = 0;
  /// Call after each step of the optimizer; it may change the parameters. is_last: no other step
  /// follows in this round; then all ranks have the same parameters.
  virtual void after_step(const std::vector<torch::Tensor>& parameters, bool is_last) = 0;
  /// Makes the values those of the first of all ranks. Contiguous, on the device that trains.
  virtual void broadcast(torch::Tensor& values) = 0;
  /// Adds up the values of the ranks that have the other parts of a batch, or of its texts. The
  /// same.
  virtual void sum(torch::Tensor& values) = 0;
  /// Adds up the values of all ranks. The same.
  virtual void sum_of_all(torch::Tensor& values) = 0;
  /// Whether it is so on any rank; for what follows from the gradients after a step's last backward
  /// pass. Nothing is sent where all ranks have the same ones.
  [[nodiscard]] virtual bool on_any(bool here) = 0;
};

/// The part [begin, end) of `n` examples that a rank takes: contiguous, in rank order, as equal as
/// can be.
struct RankPart {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
[[nodiscard]] inline RankPart part_of(std::int64_t n, std::int64_t rank, std::int64_t size) {
  return {n * rank / size, n * (rank + 1) / size};
}

}  // namespace fl
