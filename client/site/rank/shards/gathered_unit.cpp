// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/shards/gathered_unit.hpp"

#include "client/learn/torch/layer.hpp"
#include "client/site/rank/hooks/agreement.hpp"
#include "client/site/rank/queued_tensor.hpp"
#include "shared/base/error.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace fl::site {

namespace {

/// Gives a tensor's memory back, or takes memory for `bytes` bytes. Views of it, and what autograd
/// has saved of them, stay as they are, as they share the storage object.
void set_memory(const torch::Tensor& tensor, std::size_t bytes) {
  c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  if (storage->nbytes() == bytes) return;
  storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes));
  storage->set_nbytes(bytes);
}

/// Sends each rank its part of `whole` [ranks, part], and adds up what came for this one in rank
/// order, in fp32: fp32 [part]. On the group's device.
torch::Tensor reduce_parts(const torch::Tensor& whole, Ranks& ranks) {
  torch::Tensor received = torch::empty_like(whole);
  const std::vector<std::int64_t> rows(static_cast<std::size_t>(ranks.size()), 1);
  ranks.all_to_all(received, whole, rows, rows);
  torch::Tensor sum = received[0].to(torch::kFloat32, /*non_blocking=*/false, /*copy=*/true);
  for (int rank = 1; rank < ranks.size(); ++rank) sum.add_(received[rank]);
  return sum;
}

/// As the hooks bf16 and fp16 do: where fp16 would overflow on some rank, fp32 travels.
torch::Tensor in_format(const torch::Tensor& whole, torch::ScalarType format, Ranks& ranks) {
  if (format == torch::kFloat32) return whole;
  torch::Tensor narrow = whole.to(format);
  if (format == torch::kFloat16 && !all_ranks_finite(narrow, ranks)) return whole;
  return narrow;
}

}  // namespace

GatheredUnit::GatheredUnit(std::size_t number, UnitTensors tensors, const UnitCut& cut,
                           const ShardedVectors& vectors, Ranks& ranks, Conductor& conductor,
                           StepTimes& times)
    : number_(number),
      parameters_(std::move(tensors.parameters)),
      cut_(cut),
      own_weights_(vectors.weights.narrow(0, cut.at, cut.part)),
      own_gradient_(vectors.gradient.narrow(0, cut.at, cut.part)),
      gradient_parts_(vectors.gradient_parts),
      exchange_(vectors.exchange),
      group_(ranks),
      conductor_(conductor),
      times_(times),
      ranks_(ranks.size()),
      full_(ranks_ == 1 ? own_weights_
                        : torch::empty({ranks_ * cut.part}, vectors.weights.options())) {
  std::vector<ReadTensor> read;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    read.push_back({parameters_[i].numel(), tensors.formats[i]});
  for (std::int64_t rank = 0; rank < ranks_; ++rank) {
    segments_.push_back(segments_of(cut_, read, rank));
    segment_bytes_ = std::max(segment_bytes_, (bytes_of(segments_.back()) + 3) / 4 * 4);
  }
  std::int64_t at = 0;
  for (const torch::Tensor& parameter : parameters_) {
    parameter.set_data(full_.narrow(0, at, parameter.numel()).view(parameter.sizes()));
    parameter.mutable_grad().reset();
    at += parameter.numel();
  }
  if (ranks_ > 1) set_memory(full_, 0);
}

void GatheredUnit::bring(const torch::Tensor& full, bool is_rounded, Ranks& ranks) {
  const auto begin = StepTimes::Clock::now();
  if (is_rounded) {
    bring_rounded(full, ranks);
  } else {
    const torch::Tensor own = own_weights_.to(ranks.device());
    torch::Tensor there = full.device() == ranks.device()
                              ? full
                              : torch::empty_like(full, full.options().device(ranks.device()));
    ranks.all_gather(there, own);
    if (!there.is_same(full)) full.copy_(there);
  }
  times_.gathered(number_, begin);
}

void GatheredUnit::bring_rounded(const torch::Tensor& full, Ranks& ranks) {
  const auto bytes = torch::dtype(torch::kUInt8).device(ranks.device());
  torch::Tensor own = torch::zeros({segment_bytes_}, bytes);
  const auto for_each_segment = [&](std::int64_t rank, const torch::Tensor& sent, auto&& work) {
    std::int64_t at = 0;
    for (const Segment& one : segments_[static_cast<std::size_t>(rank)]) {
      const std::int64_t size = bytes_of({&one, 1});
      work(one, sent.narrow(0, at, size).view(scalar_type_of(one.format)));
      at += size;
    }
  };
  for_each_segment(ranks.rank(), own, [&](const Segment& one, torch::Tensor values) {
    values.copy_(own_weights_.narrow(0, one.begin - ranks.rank() * cut_.part, one.count));
  });
  torch::Tensor there = torch::empty({ranks_ * segment_bytes_}, bytes);
  ranks.all_gather(there, own);
  for (std::int64_t rank = 0; rank < ranks_; ++rank) {
    for_each_segment(rank, there.narrow(0, rank * segment_bytes_, segment_bytes_),
                     [&](const Segment& one, const torch::Tensor& values) {
                       full.narrow(0, one.begin, one.count).copy_(values);
                     });
  }
}

void GatheredUnit::gather_ahead(bool is_mixed) {
  if (ranks_ == 1) return;
  const bool serves = is_mixed || !is_rounded_;
  if ((is_there_ || gathering_) && serves) return;
  if (gathering_) std::exchange(gathering_, {})->waitAndThrow();
  is_there_ = false;
  is_rounded_ = is_mixed && segment_bytes_ < cut_.part * 4;
  set_memory(full_, static_cast<std::size_t>(full_.numel()) * sizeof(float));
  // Not the tensor itself, whose version autograd has noted.
  const torch::Tensor full = full_.variable_data();
  gathering_ =
      queue_tensor(conductor_, full, [this, full, rounded = is_rounded_](Ranks& /*of_all*/) {
        bring(full, rounded, group_);
        return full;
      });
}

void GatheredUnit::gather(bool is_mixed) {
  gather_ahead(is_mixed);
  if (is_there_ || ranks_ == 1) return;
  const auto begin = StepTimes::Clock::now();
  std::exchange(gathering_, {})->waitAndThrow();
  times_.waited_for_parameters(begin);
  is_there_ = true;
}

void GatheredUnit::free() {
  if (ranks_ == 1) return;
  if (gathering_) std::exchange(gathering_, {})->waitAndThrow();
  is_there_ = false;
  set_memory(full_, 0);
}

void GatheredUnit::note_gradient() {
  FL_ASSERT(left_ > 0);
  if (--left_ == 0) reduce();
}

void GatheredUnit::reduce() {
  const torch::NoGradGuard no_grad;
  torch::Tensor whole = torch::zeros({ranks_ * cut_.part}, own_gradient_.options());
  std::int64_t at = 0;
  for (const torch::Tensor& parameter : parameters_) {
    whole.narrow(0, at, parameter.numel()).copy_(parameter.grad().flatten());
    parameter.mutable_grad().reset();
    at += parameter.numel();
  }
  times_.bucket_ready();
  sending_ = whole;
  reducing_ = queue_tensor(conductor_, whole, [this, whole](Ranks& /*of_all*/) {
    const auto begin = StepTimes::Clock::now();
    whole.div_(gradient_parts_);
    const torch::Tensor there =
        in_format(whole.to(group_.device()).view({ranks_, cut_.part}), exchange_, group_);
    own_gradient_.add_(reduce_parts(there, group_).to(own_gradient_.device()));
    times_.reduced(number_, begin);
    return own_gradient_;
  });
}

void GatheredUnit::limit_sending() {
  if (!reducing_) return;
  const auto begin = StepTimes::Clock::now();
  await_reduced();
  times_.waited_for_gradients(begin);
}

void GatheredUnit::await_reduced() {
  if (reducing_) std::exchange(reducing_, {})->waitAndThrow();
  sending_.reset();
}

void GatheredUnit::forget() {
  gathering_.reset();
  reducing_.reset();
  sending_.reset();
  is_there_ = false;
  left_ = 0;
  for (const torch::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
}

}  // namespace fl::site
