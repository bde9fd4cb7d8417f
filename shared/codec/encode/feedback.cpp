// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/encode/feedback.hpp"

#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>
#include <vector>

namespace fl::codec {

namespace {

/// Decodes block after block and writes what `make` makes of each: make(first element, sent, out).
template <class Make>
Result<void> write_blocks(PayloadReader& payload, int threads, const WriteValues& write,
                          const Make& make) {
  std::mutex mutex;
  Result<void> failed = success();
  FL_CHECK(payload.for_each_block(
      threads, [&](std::uint64_t, const Block& block, std::span<const float> sent) {
        thread_local std::vector<float> room;
        room.resize(std::max(room.size(), sent.size()));
        const std::span out = std::span(room).first(sent.size());
        make(block.flat, sent, out);
        const auto written = write(block.flat, out);
        if (written) return;
        const std::lock_guard lock(mutex);
        if (failed) failed = written;
      }));
  return failed;
}

WriteValues write_into(std::span<float> target) {
  return [target](std::uint64_t first, std::span<const float> values) -> Result<void> {
    std::ranges::copy(values, target.begin() + static_cast<std::ptrdiff_t>(first));
    return {};
  };
}

}  // namespace

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

Result<void> stop_sent(std::span<const float> velocity, PayloadReader& payload,
                       const WriteValues& write, int threads) {
  FL_ASSERT(velocity.size() == payload.layout().elements());
  return write_blocks(payload, threads, write,
                      [=](std::size_t at, std::span<const float> sent, std::span<float> out) {
                        for (std::size_t i = 0; i < sent.size(); ++i)
                          out[i] = sent[i] != 0 ? 0 : velocity[at + i];
                      });
}

Result<void> stop_sent(std::span<float> velocity, PayloadReader& payload, int threads) {
  return stop_sent(velocity, payload, write_into(velocity), threads);
}

Result<void> keep_residual(std::span<const float> update, PayloadReader& payload,
                           const WriteValues& write, int threads) {
  FL_ASSERT(update.size() == payload.layout().elements());
  return write_blocks(payload, threads, write,
                      [=](std::size_t at, std::span<const float> sent, std::span<float> out) {
                        for (std::size_t i = 0; i < sent.size(); ++i)
                          out[i] = update[at + i] - sent[i];
                      });
}

Result<void> keep_residual(std::span<const float> update, PayloadReader& payload,
                           std::span<float> residual, int threads) {
  FL_ASSERT(update.size() == residual.size());
  return keep_residual(update, payload, write_into(residual), threads);
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

Result<void> add_decoded(std::span<const float> values, PayloadReader& payload,
                         const WriteValues& write, int threads) {
  FL_ASSERT(values.empty() || values.size() == payload.layout().elements());
  return write_blocks(payload, threads, write,
                      [=](std::size_t at, std::span<const float> sent, std::span<float> out) {
                        for (std::size_t i = 0; i < sent.size(); ++i)
                          out[i] = values.empty() ? sent[i] : values[at + i] + sent[i];
                      });
}

Result<void> add_decoded(std::span<float> values, PayloadReader& payload, int threads) {
  return add_decoded(values, payload, write_into(values), threads);
}

void subtract_reference(std::span<float> update, std::span<const float> reference) {
  FL_ASSERT(update.size() == reference.size());
  for (std::size_t i = 0; i < update.size(); ++i) update[i] -= reference[i];
}

}  // namespace fl::codec
