// SPDX-License-Identifier: Apache-2.0
#include "shared/algorithm/local_work.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/spec/nearest_name.hpp"
#include "shared/base/spec/spec_options.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace fl {

namespace {

constexpr OptimizerRow optimizers[] = {
    {.kind = LocalOptimizer::Kind::sgd, .name = "sgd", .usage = "sgd"},
    {.kind = LocalOptimizer::Kind::nesterov, .name = "nesterov", .usage = "nesterov"},
    {.kind = LocalOptimizer::Kind::adam, .name = "adam", .usage = "adam", .has_moments = true},
    {.kind = LocalOptimizer::Kind::adamw,
     .name = "adamw",
     .usage = "adamw[:beta1=0.9,beta2=0.999,epsilon=1e-8]",
     .has_moments = true},
};

}  // namespace

std::span<const OptimizerRow> optimizer_rows() { return optimizers; }

Result<LocalOptimizer> parse_optimizer(std::string_view spec) {
  if (spec.empty()) return LocalOptimizer{};
  FL_TRY(SpecOptions options, SpecOptions::parse(spec));
  const auto* const row = std::ranges::find(optimizers, options.name(), &OptimizerRow::name);
  if (row == std::end(optimizers)) {
    return Error(Errc::invalid_input,
                 fmt::format("there is no optimizer '{}'; choose {}{}", options.name(),
                             alternatives(optimizers, &OptimizerRow::name),
                             did_you_mean(options.name(), optimizers, &OptimizerRow::name)));
  }
  LocalOptimizer optimizer{.kind = row->kind};
  if (row->has_moments) {
    optimizer.beta1 = options.number_below("beta1", optimizer.beta1, 0, 1);
    optimizer.beta2 = options.number_below("beta2", optimizer.beta2, 0, 1);
    optimizer.epsilon = options.number("epsilon", optimizer.epsilon, 1e-20, 1);
  }
  FL_CHECK(options.finish());
  return optimizer;
}

std::string_view to_string(LocalOptimizer::Kind kind) {
  return std::ranges::find(optimizers, kind, &OptimizerRow::kind)->name;
}

std::string optimizer_spec(const LocalOptimizer& optimizer) {
  std::string spec(to_string(optimizer.kind));
  if (optimizer.is_sgd()) return spec;
  const LocalOptimizer usual;
  char before = ':';
  const auto add = [&](std::string_view key, double value, double otherwise) {
    if (value == otherwise) return;
    spec += fmt::format("{}{}={}", before, key, value);
    before = ',';
  };
  add("beta1", optimizer.beta1, usual.beta1);
  add("beta2", optimizer.beta2, usual.beta2);
  add("epsilon", optimizer.epsilon, usual.epsilon);
  return spec;
}

std::uint64_t steps_max(const TrainSettings& settings, std::uint64_t epoch_steps) {
  if (settings.local_steps > 0) return settings.local_steps;
  if (settings.local_epochs > 0) return settings.local_epochs * epoch_steps;
  FL_ASSERT(settings.local_seconds > 0 && settings.local_seconds <= local_seconds_max);
  return static_cast<std::uint64_t>(std::ceil(settings.local_seconds * limits::steps_per_s_max));
}

double effective_steps(const TrainSettings& settings, std::uint64_t steps) {
  FL_ASSERT(settings.optimizer.is_sgd());
  const double rho = settings.momentum;
  const bool nesterov = settings.optimizer.kind == LocalOptimizer::Kind::nesterov;
  double velocity = 0;
  double distance = 0;
  double last = -1;
  for (std::uint64_t left = steps; left > 0; --left) {
    const double gradient = 1 - settings.proximal_mu * settings.lr * distance;
    velocity = rho * velocity + gradient;
    const double step = nesterov ? gradient + rho * velocity : velocity;
    // From here on all steps have the same length, or (with a proximal term) they are too short to
    // change the sum. Returning early also bounds the loop for any `steps` that a client reports.
    if (settings.proximal_mu == 0 && step == last)
      return distance + static_cast<double>(left) * step;
    if (std::fabs(step) <= 1e-16 * distance) return distance;
    distance += step;
    last = step;
  }
  return distance;
}

}  // namespace fl
