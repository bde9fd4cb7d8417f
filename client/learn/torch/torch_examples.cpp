// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/torch_examples.hpp"

#include "client/learn/data/fit.hpp"

#include <algorithm>
#include <cstring>

namespace fl {

Examples::Examples(std::shared_ptr<const DataSet> all, std::span<const std::uint32_t> chosen,
                   const ModelSpec& spec, torch::Device device)
    : all_(std::move(all)), task_(spec.task), outputs_(spec.outputs), device_(device) {
  if (task_ == ModelSpec::Task::language) {
    context_ = spec.input[0];
    for (const std::uint32_t piece : chosen) {
      const std::uint32_t tokens = all_->pieces[piece].length;
      for (std::uint32_t window = 0; window < windows_in(tokens, context_); ++window)
        rows_.push_back({piece, window * static_cast<std::uint32_t>(context_)});
      predictions_ += tokens - 1;
    }
    return;
  }
  if (all_ && !all_->input_offsets.empty()) {
    offsets_ = torch::tensor(all_->input_offsets, torch::kFloat64).view(all_->shape).to(device_);
    if (spec.scales_inputs) input_type_ = torch::kFloat64;
  }
  if (all_ && !all_->target_offsets.empty() && spec.scales_targets) target_type_ = torch::kFloat64;
  rows_.reserve(chosen.size());
  for (const std::uint32_t example : chosen) rows_.push_back({example, 0});
  predictions_ = size();
  if (device_.is_cuda() && size() > 0 && chosen.size() * all_->row_bytes() <= resident_bytes_max)
    resident_ = gather(rows_).to(device_);
}

std::int64_t Examples::predictions(const torch::Tensor& positions) const {
  if (context_ == 0) return positions.size(0);
  std::int64_t sum = 0;
  for (const Row& row : rows_at(positions)) sum += predictions_of(row);
  return sum;
}

/// In text each token of the window but its first is predicted.
std::int64_t Examples::predictions_of(const Row& row) const {
  return std::min<std::int64_t>(all_->pieces[row.example].length - row.begin - 1, context_);
}

Batch Examples::batch(const torch::Tensor& positions) const {
  const std::vector<Row> rows = rows_at(positions);
  if (context_ > 0) return text(rows);
  return {inputs(positions), targets_of(rows).to(device_)};
}

torch::Tensor Examples::inputs(const torch::Tensor& positions) const {
  const torch::Tensor stored = resident_.defined()
                                   ? resident_.index_select(0, positions.to(device_))
                                   : gather(rows_at(positions)).to(device_);
  if (all_->kind == DataSet::Kind::pixels) return stored.to(torch::kFloat32).div_(255);
  return offsets_.defined() ? (stored + offsets_).to(input_type_) : stored;
}

std::vector<Examples::Row> Examples::rows_at(const torch::Tensor& positions) const {
  const auto* const at = positions.const_data_ptr<std::int64_t>();
  std::vector<Row> rows;
  rows.reserve(static_cast<std::size_t>(positions.size(0)));
  for (std::int64_t i = 0; i < positions.size(0); ++i)
    rows.push_back(rows_[static_cast<std::size_t>(at[i])]);
  return rows;
}

/// A copy of these inputs as they are stored: uint8 or fp32.
torch::Tensor Examples::gather(std::span<const Row> rows) const {
  std::vector<std::int64_t> shape{static_cast<std::int64_t>(rows.size())};
  shape.insert(shape.end(), all_->shape.begin(), all_->shape.end());
  const bool is_pixels = all_->kind == DataSet::Kind::pixels;
  torch::Tensor inputs = torch::empty(shape, is_pixels ? torch::kUInt8 : torch::kFloat32);
  auto* out = static_cast<std::byte*>(inputs.mutable_data_ptr());
  const std::uint64_t bytes = all_->row_bytes();
  for (const Row& row : rows) {
    std::memcpy(out, all_->row(row.example).data(), bytes);
    out += bytes;
  }
  return inputs;
}

torch::Tensor Examples::targets_of(std::span<const Row> rows) const {
  const auto n = static_cast<std::int64_t>(rows.size());
  if (task_ == ModelSpec::Task::classification) {
    torch::Tensor classes = torch::empty({n}, torch::kInt64);
    std::ranges::transform(rows, classes.mutable_data_ptr<std::int64_t>(),
                           [this](const Row& row) { return all_->labels[row.example]; });
    return classes;
  }
  torch::Tensor values = torch::empty({n, outputs_}, torch::kFloat64);
  auto* out = values.mutable_data_ptr<double>();
  for (const Row& row : rows) {
    for (std::uint32_t i = 0; i < outputs_; ++i) *out++ = target_of(*all_, row.example, i);
  }
  return values.to(target_type_);
}

Batch Examples::text(std::span<const Row> rows) const {
  const auto n = static_cast<std::int64_t>(rows.size());
  const torch::Tensor inputs = torch::zeros({n, context_}, torch::kInt64);
  const torch::Tensor targets = torch::full({n, context_}, no_target, torch::kInt64);
  auto* in = inputs.mutable_data_ptr<std::int64_t>();
  auto* next = targets.mutable_data_ptr<std::int64_t>();
  for (const Row& row : rows) {
    const auto tokens = all_->row(row.example);
    const auto length = static_cast<std::size_t>(predictions_of(row));
    for (std::size_t i = 0; i < length; ++i) {
      in[i] = token_at(tokens, row.begin + i, all_->token_bytes);
      next[i] = token_at(tokens, row.begin + i + 1, all_->token_bytes);
    }
    in += context_;
    next += context_;
  }
  return {inputs.to(device_), targets.to(device_)};
}

}  // namespace fl
