// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/encode/feedback.hpp"

#include "kernels/kernels.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

namespace fl::codec {

namespace {

/// Decodes block after block and writes what `make` makes of each: make(number, first element,
/// sent, out).
template <class Make>
Result<void> write_blocks(PayloadReader& payload, int threads, const WriteValues& write,
                          const Make& make) {
  std::mutex mutex;
  Result<void> failed = success();
  FL_CHECK(payload.for_each_block(
      threads, [&](std::uint64_t index, const Block& block, std::span<const float> sent) {
        thread_local std::vector<float> room;
        room.resize(std::max(room.size(), sent.size()));
        const std::span out = std::span(room).first(sent.size());
        make(index, block.flat, sent, out);
        const auto written = write(block.flat, out);
        if (written) return;
        const std::lock_guard lock(mutex);
        if (failed) failed = written;
      }));
  return failed;
}

/// The errors of a payload's blocks. They are added up in the order of the blocks, whichever thread
/// finishes first.
class BlockErrors {
 public:
  explicit BlockErrors(std::size_t blocks) : errors_(blocks) {}
  void note(std::size_t index, std::span<const float> coded, std::span<const float> lost) {
    errors_[index] = {.power = kernels().scan(coded.data(), coded.size()).sum_squares,
                      .lost = kernels().scan(lost.data(), lost.size()).sum_squares};
  }
  [[nodiscard]] CodingError sum() const {
    CodingError all;
    for (const CodingError& one : errors_) {
      all.power += one.power;
      all.lost += one.lost;
    }
    return all;
  }

 private:
  std::vector<CodingError> errors_;
};

WriteValues write_into(std::span<float> target) {
  return [target](std::uint64_t first, std::span<const float> values) -> Result<void> {
    copy_span(values, target.subspan(first, values.size()));
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
  return write_blocks(
      payload, threads, write,
      [=](std::uint64_t, std::size_t at, std::span<const float> sent, std::span<float> out) {
        for (std::size_t i = 0; i < sent.size(); ++i) out[i] = sent[i] != 0 ? 0 : velocity[at + i];
      });
}

Result<void> stop_sent(std::span<float> velocity, PayloadReader& payload, int threads) {
  return stop_sent(velocity, payload, write_into(velocity), threads);
}

Result<CodingError> keep_residual(std::span<const float> update, PayloadReader& payload,
                                  const WriteValues& write, int threads) {
  FL_ASSERT(update.size() == payload.layout().elements());
  BlockErrors errors(payload.blocks());
  FL_CHECK(write_blocks(
      payload, threads, write,
      [&](std::uint64_t index, std::size_t at, std::span<const float> sent, std::span<float> out) {
        for (std::size_t i = 0; i < sent.size(); ++i) out[i] = update[at + i] - sent[i];
        errors.note(index, update.subspan(at, sent.size()), out);
      }));
  return errors.sum();
}

Result<CodingError> keep_residual(std::span<const float> update, PayloadReader& payload,
                                  std::span<float> residual, int threads) {
  FL_ASSERT(update.size() == residual.size());
  return keep_residual(update, payload, write_into(residual), threads);
}

Result<CodingError> coding_error(std::span<const float> update, PayloadReader& payload,
                                 int threads) {
  const WriteValues nowhere = [](std::uint64_t, std::span<const float>) -> Result<void> {
    return {};
  };
  return keep_residual(update, payload, nowhere, threads);
}

Result<void> add_decoded(std::span<const float> values, PayloadReader& payload,
                         const WriteValues& write, int threads) {
  FL_ASSERT(values.empty() || values.size() == payload.layout().elements());
  return write_blocks(
      payload, threads, write,
      [=](std::uint64_t, std::size_t at, std::span<const float> sent, std::span<float> out) {
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
