// SPDX-License-Identifier: Apache-2.0
#include "tests/world/toy_trainer.hpp"

#include "kernels/generic/philox.hpp"

#include <algorithm>
#include <cmath>

namespace fl::test {

namespace {

/// The first `count` values of stream (seed, stream): uniform in [-1, 1), exact in fp32.
std::vector<float> draws(std::uint64_t seed, std::uint64_t stream, std::uint64_t count) {
  std::vector<float> values(count);
  for (std::uint64_t i = 0; i < count; i += 4) {
    const auto block = philox::block_at(seed, stream, i / 4);
    for (std::uint64_t k = 0; k < 4 && i + k < count; ++k) {
      const auto word = static_cast<std::int32_t>(block.word[k]);
      values[i + k] = static_cast<float>(word >> 8) * 0x1p-23f;
    }
  }
  return values;
}

constexpr std::int64_t statistics = 2;
constexpr std::uint64_t initial_stream = 1'000'000;
constexpr std::uint64_t noise_stream = 1'000'001;

}  // namespace

ToyProblem ToyProblem::make(std::uint64_t parameters, std::uint64_t seed) {
  const auto rows = static_cast<std::int64_t>(std::max<std::uint64_t>(1, parameters / 8));
  ToyProblem problem;
  problem.layout = Layout::make({{"body.weight", {rows, 7}},
                                 {"body.bias", {rows}},
                                 {"scale", {}},
                                 {"norm.running_mean", {statistics}}})
                       .value();
  problem.seed = seed;
  return problem;
}

void ToyProblem::drop_statistics() {
  std::vector<TensorSpec> tensors;
  for (const auto& tensor : layout.tensors())
    if (!tensor.name.starts_with("norm")) tensors.push_back({tensor.name, tensor.shape});
  layout = Layout::make(std::move(tensors)).value();
}

std::vector<float> ToyProblem::point(std::uint32_t client) const {
  return draws(seed, client, layout.elements());
}

std::vector<float> ToyProblem::initial_weights(std::uint64_t run_seed) const {
  return draws(run_seed, initial_stream, layout.elements());
}

ToyTrainer::ToyTrainer(ToyProblem problem, Part part, Record record)
    : problem_(std::move(problem)),
      part_(std::move(part)),
      kinds_(kinds_of(part_)),
      record_(std::move(record)),
      point_(problem_.point(part_.client)) {}

std::vector<MetricKind> ToyTrainer::kinds_of(const Part& part) {
  std::vector<MetricKind> kinds;
  for (const std::string& name : part.metrics) {
    kinds.push_back(name == "distance" ? MetricKind{.name = name, .lower_is_better = true}
                                       : known_metric(name));
  }
  return kinds;
}

std::vector<MetricValue> ToyTrainer::values_of(const Part& part, double loss) {
  std::vector<MetricValue> values;
  for (const std::string& name : part.metrics) {
    if (name == "perplexity") {
      values.push_back({name, std::exp(loss), 3 * static_cast<double>(part.holdout)});
    } else {
      values.push_back({name, name == "distance" ? std::sqrt(loss) : 1 / (1 + loss), 0});
    }
  }
  return values;
}

Result<std::vector<float>> ToyTrainer::initial_weights(std::uint64_t seed) const {
  return problem_.initial_weights(seed);
}

std::uint64_t ToyTrainer::steps_of(const TrainSettings& settings, const Part& part) {
  const std::uint64_t most = steps_max(settings, 1);
  if (settings.local_seconds == 0) return most;
  const auto fit = static_cast<std::uint64_t>(settings.local_seconds / part.step_seconds);
  return std::clamp<std::uint64_t>(fit, 1, most);
}

Result<TrainReport> ToyTrainer::train(std::span<const float> global, const TrainSettings& settings,
                                      std::span<const float> correction, std::span<float> update,
                                      std::stop_token stop) {
  if (stop.stop_requested()) return Error(Errc::cancelled, "training was stopped");
  const std::uint64_t steps = steps_of(settings, part_);
  const auto lr = static_cast<float>(settings.lr);
  const auto mu = static_cast<float>(settings.proximal_mu);
  const auto noise = static_cast<float>(problem_.noise);
  std::vector<float> noises;
  if (noise > 0) noises = draws(settings.seed, noise_stream, update.size());
  const std::size_t parameters = update.size() - statistics;
  for (std::size_t i = 0; i < update.size(); ++i) {
    float w = global[i];
    if (i >= parameters) {
      for (std::uint64_t step = 0; step < steps; ++step) w += 0.3F * (point_[i] - w);
      update[i] = w - global[i];
      continue;
    }
    const float added = correction.empty() ? 0.0F : correction[i];
    for (std::uint64_t step = 0; step < steps; ++step)
      w -= lr * (w - point_[i] + added + mu * (w - global[i]));
    update[i] = w - global[i];
    if (noise > 0) update[i] += noise * noises[i];
  }
  if (record_) record_(settings, update);
  if (part_.make_device) on_device_.assign(update.begin(), update.end());
  TrainReport report;
  report.examples = part_.examples;
  report.steps = steps;
  report.loss = loss_at(global, point_);
  if (part_.predictions)
    report.predictions = *part_.predictions * static_cast<double>(part_.examples);
  return report;
}

Result<void> ToyTrainer::gradient(std::span<const float> weights, const TrainSettings&,
                                  std::span<float> gradient, std::stop_token) {
  on_device_.clear();
  for (std::size_t i = 0; i < weights.size(); ++i) gradient[i] = weights[i] - point_[i];
  return {};
}

Result<EvalReport> ToyTrainer::evaluate(std::span<const float> weights, std::stop_token stop) {
  if (stop.stop_requested()) return Error(Errc::cancelled, "the evaluation was stopped");
  on_device_.clear();
  EvalReport report;
  report.examples = part_.holdout;
  report.loss = loss_at(weights, point_);
  if (part_.predictions)
    report.predictions = *part_.predictions * static_cast<double>(part_.holdout);
  report.metrics = values_of(part_, report.loss);
  return report;
}

Result<std::unique_ptr<CodecDevice>> ToyTrainer::make_codec_device() {
  if (!part_.make_device) return std::unique_ptr<CodecDevice>();
  return part_.make_device();
}

const float* ToyTrainer::update_on_device() {
  return on_device_.empty() ? nullptr : on_device_.data();
}

double ToyTrainer::loss_at(std::span<const float> weights, std::span<const float> point) {
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double d = weights[i] - point[i];
    sum += d * d;
  }
  return sum / (2 * static_cast<double>(weights.size()));
}

}  // namespace fl::test
