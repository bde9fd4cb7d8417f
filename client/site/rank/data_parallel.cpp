// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/data_parallel.hpp"

#include "client/site/rank/comm_hook.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace fl {

namespace {

constexpr std::size_t first_bucket_bytes = 1 << 20;  // Small, so that it is ready early.

/// Calls call() with the values on the group's device, which may be another one than theirs.
template <class Call>
void on_device_of(const Ranks& ranks, torch::Tensor& values, const Call& call) {
  torch::Tensor there = values.to(ranks.device());  // The same one, if it is there.
  call(there);
  if (!there.is_same(values)) values.copy_(there);
}

}  // namespace

void DataParallel::enter(std::unique_ptr<Ranks> ranks, std::unique_ptr<GradientHook> hook,
                         std::size_t bucket_bytes, bool is_local) {
  leave();
  ranks_ = std::move(ranks);
  std::vector<int> all(static_cast<std::size_t>(ranks_->size()));
  std::iota(all.begin(), all.end(), 0);
  wire_ = ranks_->subgroup(all, "gradients");
  ranks_->observe([this](const Ranks::Call& call) {
    times_.called_beside(call);
    on_progress_();
  });
  wire_->observe([this](const Ranks::Call& call) {
    times_.called(call);
    on_progress_();
  });
  hook_ = std::move(hook);
  conductor_.emplace(*wire_);
  bucket_bytes_ = bucket_bytes;
  is_local_ = is_local;
}

void DataParallel::leave() {
  reducer_.reset();
  conductor_.reset();
  hook_.reset();
  wire_.reset();
  ranks_.reset();
}

void DataParallel::make_reducer(const std::vector<torch::Tensor>& parameters) {
  const std::size_t first = std::min(first_bucket_bytes, bucket_bytes_);
  // A backward pass finishes the last parameters first. The Reducer could find that out in its
  // first step and form its buckets anew (rebuild_buckets()); then the first step of each group
  // would have other buckets, and so other bits.
  const std::vector<torch::Tensor> reversed(parameters.rbegin(), parameters.rend());
  std::vector<std::int64_t> numbers(parameters.size());
  std::iota(numbers.rbegin(), numbers.rend(), 0);
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      reversed, {first, bucket_bytes_}, std::vector<bool>(parameters.size(), false), numbers);
  buckets_ = buckets.size();
  reducer_ = std::make_unique<c10d::Reducer>(
      parameters, std::move(buckets), ranks_->group(), std::vector<bool>(parameters.size(), false),
      static_cast<std::int64_t>(bucket_bytes_), /*find_unused_parameters=*/false,
      /*gradient_as_bucket_view=*/false, std::unordered_map<std::size_t, std::string>(),
      static_cast<std::int64_t>(first), /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, std::vector<std::int64_t>());
  reducer_->register_comm_hook(make_comm_hook(*hook_, *conductor_, parameters, times_));
}

void DataParallel::before_forward(const std::vector<torch::Tensor>& parameters, bool is_last) {
  times_.forward();
  on_progress_();
  if (!is_last) return;
  if (!reducer_) make_reducer(parameters);
  reducer_->prepare_for_forward();
}

void DataParallel::before_backward(bool is_last) {
  if (is_last) reducer_->prepare_for_backward({});
  times_.backward();
}

void DataParallel::after_backward(bool is_last) {
  times_.backward_ended(is_last);
  // The Reducer sums a bucket when all of its gradients are there. Where one never comes, it sums
  // neither that bucket nor those after it, and the gradients stay each rank's own, without a word.
  // (Its find_unused_parameters=true would look for such ones, at the price of a walk through the
  // graph and a collective in each step; no built-in model needs it.)
  if (!is_last || times_.buckets_ready() == buckets_) return;
  throw std::logic_error(fmt::format(
      "{} of {} pieces of the gradient were not summed, because a parameter got no gradient in "
      "this step: ranks can't train a model that does not use all of its parameters in each step",
      buckets_ - times_.buckets_ready(), buckets_));
}

void DataParallel::after_step(std::vector<torch::Tensor>& parameters, bool is_last) {
  const auto begin = StepTimes::Clock::now();
  conductor_->run([&](Ranks& ranks) { hook_->after_step(parameters, is_last, ranks); });
  times_.waited(begin, StepTimes::Clock::now());
}

void DataParallel::broadcast(torch::Tensor& values) {
  on_device_of(*ranks_, values, [this](torch::Tensor& there) { ranks_->broadcast(there, 0); });
}

void DataParallel::sum(torch::Tensor& values) {
  on_device_of(*ranks_, values, [this](torch::Tensor& there) { ranks_->sum(there); });
}

}  // namespace fl
