// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/encode/feedback.hpp"

#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

namespace fl {

void add_residual(std::span<float> update, std::span<const float> residual, float keep) {
  FL_ASSERT(update.size() == residual.size());
  for (std::size_t i = 0; i < update.size(); ++i) update[i] += keep * residual[i];
}

void add_velocity(std::span<float> update, std::span<float> velocity, float momentum) {
  FL_ASSERT(update.size() == velocity.size());
  for (std::size_t i = 0; i < update.size(); ++i) {
    velocity[i] = momentum * velocity[i] + update[i];
    update[i] = velocity[i];
  }
}

Result<void> stop_sent(std::span<float> velocity, PayloadReader& payload, int threads) {
  FL_ASSERT(velocity.size() == payload.layout().elements());
  return payload.for_each_block(
      threads, [=](std::uint64_t, const Block& block, std::span<const float> sent) {
        for (std::size_t i = 0; i < sent.size(); ++i) {
          if (sent[i] != 0) velocity[block.flat + i] = 0;
        }
      });
}

Result<void> keep_residual(std::span<const float> update, PayloadReader& payload,
                           std::span<float> residual, int threads) {
  FL_ASSERT(update.size() == residual.size() && update.size() == payload.layout().elements());
  return payload.for_each_block(
      threads, [=](std::uint64_t, const Block& block, std::span<const float> sent) {
        for (std::size_t i = 0; i < sent.size(); ++i)
          residual[block.flat + i] = update[block.flat + i] - sent[i];
      });
}

Result<double> squared_error(std::span<const float> update, PayloadReader& payload, int threads) {
  FL_ASSERT(update.size() == payload.layout().elements());
  // The errors are added in the order of the blocks, whichever thread finishes first.
  std::vector<double> errors(payload.blocks());
  FL_CHECK(payload.for_each_block(
      threads, [&](std::uint64_t index, const Block& block, std::span<const float> sent) {
        std::array<float, 1024> error;
        for (std::size_t begin = 0; begin < sent.size(); begin += error.size()) {
          const std::size_t n = std::min(error.size(), sent.size() - begin);
          const float* const wanted = update.data() + block.flat + begin;
          for (std::size_t i = 0; i < n; ++i) error[i] = wanted[i] - sent[begin + i];
          errors[index] += kernels().scan(error.data(), n).sum_squares;
        }
      }));
  return std::accumulate(errors.begin(), errors.end(), 0.0);
}

Result<double> nmse_of(std::span<float> update, PayloadReader& payload, bool is_kept, int threads) {
  const auto power_of = [&] { return kernels().scan(update.data(), update.size()).sum_squares; };
  const double power = power_of();
  double lost = 0;
  if (is_kept) {
    FL_CHECK(keep_residual(update, payload, update, threads));
    lost = power_of();
  } else {
    FL_TRY(lost, squared_error(update, payload, threads));
  }
  return power > 0 ? lost / power : 0.0;
}

Result<void> add_decoded(std::span<float> values, PayloadReader& payload, int threads) {
  FL_ASSERT(values.size() == payload.layout().elements());
  return payload.for_each_block(
      threads, [=](std::uint64_t, const Block& block, std::span<const float> sent) {
        for (std::size_t i = 0; i < sent.size(); ++i) values[block.flat + i] += sent[i];
      });
}

std::vector<float> difference_to(std::span<const float> update, std::span<const float> reference) {
  FL_ASSERT(update.size() == reference.size());
  std::vector<float> out(update.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = update[i] - reference[i];
  return out;
}

}  // namespace fl
