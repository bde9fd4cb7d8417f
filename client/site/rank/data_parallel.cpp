// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/data_parallel.hpp"

#include <algorithm>
#include <utility>

namespace fl {

namespace {

constexpr std::size_t first_bucket_bytes =
    1 << 20;  // The first to be ready is small, to start early.

}  // namespace

void DataParallel::enter(std::shared_ptr<Ranks> ranks, const DataParallelOptions& options) {
  reducer_.reset();
  ranks_ = std::move(ranks);
  options_ = options;
}

void DataParallel::make_reducer(const std::vector<torch::Tensor>& parameters) {
  const std::size_t first = std::min(first_bucket_bytes, options_.bucket_bytes);
  auto [buckets, limits] =
      c10d::compute_bucket_assignment_by_size(parameters, {first, options_.bucket_bytes});
  // A backward pass finishes the last parameters first.
  std::ranges::reverse(buckets);
  reducer_ = std::make_unique<c10d::Reducer>(
      parameters, std::move(buckets), ranks_->group(), std::vector<bool>(parameters.size(), false),
      static_cast<std::int64_t>(options_.bucket_bytes), /*find_unused_parameters=*/false,
      /*gradient_as_bucket_view=*/false, std::unordered_map<std::size_t, std::string>(),
      static_cast<std::int64_t>(first), /*skip_all_reduce_unused_params=*/false,
      /*use_python_reducer=*/false, std::vector<std::int64_t>());
}

void DataParallel::before_forward(const std::vector<torch::Tensor>& parameters, bool is_last) {
  if (!is_last) return;
  if (!reducer_) make_reducer(parameters);
  reducer_->prepare_for_forward();
  reducer_->rebuild_buckets();
}

void DataParallel::before_backward(bool is_last) {
  if (is_last) reducer_->prepare_for_backward({});
}

}  // namespace fl
