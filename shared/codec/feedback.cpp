#include "shared/codec/feedback.hpp"

#include <vector>

namespace fl {

namespace {

// Calls use(flat index of the first value, values) for each block of the payload.
template <class Use>
Result<void> for_each_block(PayloadReader& payload, const Use& use) {
  std::vector<float> values;
  for (std::uint64_t i = 0; i < payload.blocks(); ++i) {
    const Block block = payload.block(i);
    values.resize(block.elements);
    if (const auto decoded = payload.decode(i, values); !decoded) return decoded.error();
    use(block.flat, std::span<const float>(values));
  }
  return {};
}

}  // namespace

void add_residual(std::span<float> update, std::span<const float> residual) {
  FL_ASSERT(update.size() == residual.size());
  for (std::size_t i = 0; i < update.size(); ++i) update[i] += residual[i];
}

void add_velocity(std::span<float> update, std::span<float> velocity, float momentum) {
  FL_ASSERT(update.size() == velocity.size());
  for (std::size_t i = 0; i < update.size(); ++i) {
    velocity[i] = momentum * velocity[i] + update[i];
    update[i] = velocity[i];
  }
}

Result<void> stop_sent(std::span<float> velocity, PayloadReader& payload) {
  FL_ASSERT(velocity.size() == payload.layout().elements());
  return for_each_block(payload, [&](std::uint64_t flat, std::span<const float> sent) {
    for (std::size_t i = 0; i < sent.size(); ++i) {
      if (sent[i] != 0) velocity[flat + i] = 0;
    }
  });
}

Result<void> keep_residual(std::span<const float> update, PayloadReader& payload,
                           std::span<float> residual) {
  FL_ASSERT(update.size() == residual.size() && update.size() == payload.layout().elements());
  return for_each_block(payload, [&](std::uint64_t flat, std::span<const float> sent) {
    for (std::size_t i = 0; i < sent.size(); ++i) residual[flat + i] = update[flat + i] - sent[i];
  });
}

Result<double> squared_error(std::span<const float> update, PayloadReader& payload) {
  FL_ASSERT(update.size() == payload.layout().elements());
  double sum = 0;
  const auto added = for_each_block(payload, [&](std::uint64_t flat, std::span<const float> sent) {
    double of_block = 0;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      const double error = static_cast<double>(update[flat + i]) - sent[i];
      of_block += error * error;
    }
    sum += of_block;
  });
  if (!added) return added.error();
  return sum;
}

Result<void> put_back(std::span<float> residual, PayloadReader& payload) {
  FL_ASSERT(residual.size() == payload.layout().elements());
  return for_each_block(payload, [&](std::uint64_t flat, std::span<const float> sent) {
    for (std::size_t i = 0; i < sent.size(); ++i) residual[flat + i] += sent[i];
  });
}

}  // namespace fl
