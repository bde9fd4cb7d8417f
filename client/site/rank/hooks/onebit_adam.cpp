// SPDX-License-Identifier: Apache-2.0
#include "client/site/rank/hooks/agreement.hpp"
#include "client/site/rank/hooks/hooks.hpp"
#include "client/site/rank/hooks/sign_bits.hpp"

#include <algorithm>
#include <cmath>

namespace fl::site {

namespace {

struct AdamSettings {
  std::int64_t warmup = 100;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

/// Codes values + error; `error` becomes what the code has lost.
SignCode code_with(const torch::Tensor& values, torch::Tensor error) {
  SignCode code = sign_code_of(error.add_(values));
  subtract_sign_code(code, error);
  return code;
}

class OneBitAdam final : public GradientHook {
 public:
  explicit OneBitAdam(const AdamSettings& settings) : settings_(settings) {}

  void reduce(Bucket& bucket, Ranks& ranks) override {
    const auto number = static_cast<double>(step_ + 1);
    torch::Tensor& momentum = momenta_.of(bucket);
    torch::Tensor& variance = variances_.of(bucket);
    const bool is_warming_up = step_ < settings_.warmup;
    if (bucket.is_last) ++step_;
    if (is_warming_up || !all_ranks_finite(bucket.gradient, ranks)) {
      divide_and_sum(bucket.gradient, ranks);
      // All ranks have the same mean, so all return it as it is.
      if (!bucket.gradient.isfinite().all().item<bool>()) return;
      momentum.lerp_(bucket.gradient, 1 - settings_.beta1);
      variance.mul_(settings_.beta2)
          .addcmul_(bucket.gradient, bucket.gradient, 1 - settings_.beta2);
    } else {
      momentum.lerp_(bucket.gradient, 1 - settings_.beta1);
      average(momentum, worker_errors_.of(bucket), server_errors_.of(bucket), ranks);
    }
    const double counted = std::min(number, static_cast<double>(settings_.warmup));
    const torch::Tensor deviation =
        (variance / (1 - std::pow(settings_.beta2, counted))).sqrt_().add_(settings_.epsilon);
    torch::div_out(bucket.gradient, momentum / (1 - std::pow(settings_.beta1, number)), deviation);
  }

  [[nodiscard]] HookState save() const override {
    HookState state = state_with_step(step_);
    momenta_.save(state);
    variances_.save(state);
    worker_errors_.save(state);
    server_errors_.save(state);
    return state;
  }
  void load(const HookState& state) override {
    step_ = step_in(state);
    momenta_.load(state);
    variances_.load(state);
    worker_errors_.load(state);
    server_errors_.load(state);
  }

 private:
  /// Makes the mean of the ranks' momenta with one bit for each element each way. Rank r is the
  /// paper's server for the r-th part of the vector.
  static void average(torch::Tensor& momentum, torch::Tensor& worker_error,
                      torch::Tensor& server_error, Ranks& ranks) {
    const std::int64_t length = momentum.numel();
    const std::int64_t size = ranks.size();
    const std::int64_t part_bytes = (length + 8 * size - 1) / (8 * size);
    const std::int64_t part = part_bytes * 8;
    const auto begin = std::min(ranks.rank() * part, length);
    const auto own = std::min(part, length - begin);

    const SignCode sent = code_with(momentum, worker_error);
    torch::Tensor bits = torch::zeros({size * part_bytes}, sent.bits.options());
    bits.narrow(0, 0, sent.bits.numel()).copy_(sent.bits);
    torch::Tensor received = torch::empty_like(bits);
    const std::vector<std::int64_t> even(static_cast<std::size_t>(size), part_bytes);
    ranks.all_to_all(received, bits, even, even);
    torch::Tensor mean = torch::empty({own}, momentum.options());
    mean_of_sign_codes(received.view({size, part_bytes}), gather(sent.scale, ranks).flatten(),
                       mean);

    const SignCode answer = code_with(mean, server_error.narrow(0, begin, own));
    torch::Tensor answer_bits = torch::zeros({part_bytes}, bits.options());
    answer_bits.narrow(0, 0, answer.bits.numel()).copy_(answer.bits);
    const torch::Tensor all_bits = gather(answer_bits, ranks);
    const torch::Tensor all_scales = gather(answer.scale, ranks);
    for (std::int64_t rank = 0; rank < size; ++rank) {
      const std::int64_t at = std::min(rank * part, length);
      mean_of_sign_codes(all_bits.narrow(0, rank, 1), all_scales.narrow(0, rank, 1),
                         momentum.narrow(0, at, std::min(part, length - at)));
    }
  }

  AdamSettings settings_;
  std::int64_t step_ = 0;
  Residuals momenta_{"momentum/"};
  Residuals variances_{"variance/"};
  Residuals worker_errors_{"worker-error/"};
  Residuals server_errors_{"server-error/"};
};

}  // namespace

std::unique_ptr<GradientHook> make_onebit_adam(SpecOptions& options) {
  AdamSettings settings;
  settings.warmup = options.count("warmup", 100, 1);
  settings.beta1 = options.number_below("beta1", 0.9, 0, 1);
  settings.beta2 = options.number_below("beta2", 0.999, 0, 1);
  settings.epsilon = options.number("epsilon", 1e-8, 0, 1);
  return std::make_unique<OneBitAdam>(settings);
}

}  // namespace fl::site
