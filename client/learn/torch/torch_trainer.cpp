// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/torch_trainer.hpp"

#include "client/learn/data/fit.hpp"
#include "client/learn/data/random.hpp"
#include "client/learn/precision.hpp"
#include "client/learn/torch/find_device.hpp"
#include "client/learn/torch/guarded.hpp"
#include "client/learn/torch/torch_learner.hpp"
#ifdef FL_HAS_CUDA
#include "kernels/cuda/cuda_codec_device.hpp"
#endif
#include "kernels/kernels.hpp"
#include "shared/base/async/parallel.hpp"
#include "shared/params/model_table.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/utils.h>
#include <torch/version.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

namespace fl {

namespace {

constexpr std::int64_t bytes_evaluated_at_once = 8192;  // A batch of text has so many at most.

/// Makes glibc keep freed memory. Every step allocates and frees the same tensors; returning their
/// pages to the kernel and asking for them again would take a third of a small model's time.
void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kept = 32 << 20;  // The largest value that glibc accepts: half of a thread's heap.
  ::mallopt(M_MMAP_THRESHOLD, kept);
  ::mallopt(M_TRIM_THRESHOLD, kept);
#endif
}

// Checks the settings, because they come from the server.
Result<void> check(const TrainSettings& s) {
  const auto refuse = [&](std::string_view what, auto value, std::string_view wanted) {
    return Error(Errc::invalid_input,
                 fmt::format("round {}: {} {}: must be {}", s.round, what, value, wanted));
  };
  // libtorch throws if a factor does not fit into a float. NaN fails this check too.
  const auto is_factor = [](double x) { return x >= 0 && x <= std::numeric_limits<float>::max(); };
  if (s.batch_size == 0) return refuse("batch_size", s.batch_size, "at least 1");
  if (s.accumulate == 0) return refuse("accumulate", s.accumulate, "at least 1");
  if (!(s.local_seconds >= 0 && s.local_seconds <= local_seconds_max)) {
    return refuse("local_seconds", s.local_seconds, "a time that can be waited for");
  }
  if (s.local_epochs == 0 && s.local_steps == 0 && s.local_seconds == 0) {
    return refuse("local_epochs", s.local_epochs, "at least 1 where nothing else is asked");
  }
  if (!is_factor(s.lr)) return refuse("lr", s.lr, "from 0 to what a float can hold");
  if (!is_factor(s.momentum) || s.momentum >= 1) {
    return refuse("momentum", s.momentum, "from 0 to below 1");
  }
  if (!is_factor(s.weight_decay)) {
    return refuse("weight_decay", s.weight_decay, "from 0 to what a float can hold");
  }
  if (!is_factor(s.optimizer.beta1) || s.optimizer.beta1 >= 1) {
    return refuse("beta1", s.optimizer.beta1, "from 0 to below 1");
  }
  if (!is_factor(s.optimizer.beta2) || s.optimizer.beta2 >= 1) {
    return refuse("beta2", s.optimizer.beta2, "from 0 to below 1");
  }
  if (!is_factor(s.clip_norm)) {
    return refuse("clip_norm", s.clip_norm, "from 0 to what a float can hold");
  }
  if (!is_factor(s.proximal_mu)) {
    return refuse("proximal_mu", s.proximal_mu, "from 0 to what a float can hold");
  }
  return {};
}

class TorchTrainer final : public Trainer {
 public:
  /// `learners` has at least one element; all share the same weights.
  TorchTrainer(const LearnOptions& options, Layout layout, std::vector<Learner> learners,
               LocalData data, torch::Device device, StepSync* together)
      : together_(together),
        model_(options.model),
        layout_(std::move(layout)),
        device_(device),
        client_seed_(options.client_seed),
        learners_(std::move(learners)),
        train_(data.all, data.train, first().spec(), device),
        holdout_(data.all, data.holdout, first().spec(), device),
        data_(std::move(data)) {
    abilities_ = abilities_of(options);
    if (options.keep_moments) kept_.emplace(posix_files(), options.state);
  }

  const Layout& layout() const override { return layout_; }
  std::uint64_t train_examples() const override {
    return static_cast<std::uint64_t>(train_.size());
  }
  std::uint64_t holdout_examples() const override {
    return static_cast<std::uint64_t>(holdout_.size());
  }
  /// Made when asked for: fl-sim makes a trainer for each piece of work, and few are asked.
  std::vector<ColumnSummary> summaries() const override {
    return summarise(learners_.front().spec(), data_);
  }
  std::span<const MetricKind> metrics() const override { return builtin_metrics(model_); }
  Abilities abilities() const override { return abilities_; }
  void enter_run(const std::string& run_key) override { run_key_ = run_key; }
  bool takes_steps_together() const override { return learners_.size() > 1; }

  Result<std::vector<float>> initial_weights(std::uint64_t seed) const override {
    return builtin_initial_weights(model_, seed).value();
  }

  Result<TrainReport> train(std::span<const float> global, const TrainSettings& settings,
                            std::span<const float> correction, std::span<float> update,
                            std::stop_token stop) override {
    FL_ASSERT(global.size() == layout_.elements() && update.size() == layout_.elements());
    FL_ASSERT(correction.empty() || correction.size() == layout_.elements());
    FL_CHECK(check(settings));
    if (train_.size() == 0) {
      return Error(Errc::invalid_input, "this client holds no examples to train on");
    }
    return guarded([&]() -> Result<TrainReport> {
      const TimePoint begin = Clock::now();
      const torch::Tensor start = flat(global).to(device_);
      load(start);
      LocalRun run{.settings = settings, .start = parameters_of(start), .stop = std::move(stop)};
      if (!correction.empty()) run.correction = parameters_of(flat(correction).to(device_));
      run.seed = mix_seeds(settings.seed, client_seed_);
      run.together = together_;
      const std::int64_t step_size = step_examples(settings, train_.size(), ranks());
      run.steps = steps_max(settings, (train_.size() + step_size - 1) / step_size);
      if (settings.local_seconds > 0) {
        run.end = begin + std::chrono::duration_cast<Duration>(
                              std::chrono::duration<double>(settings.local_seconds));
      }
      Moments moments;
      if (kept_) {
        FL_CHECK(begin_moments(settings.round, moments));
        run.moments = &moments;
      }
      FL_TRY(TrainReport report, run_threads(run));
      if (together_ != nullptr) join(report);
      // This copy waits for the device, so nothing that reads the update there later has to.
      flat(update).copy_(first().parameters().model.sub_(start));
      FL_CHECK(check_finite(update, settings, report.steps));
      if (kept_ && is_first_rank()) FL_CHECK(kept_->keep(run_key_, settings.round, moments));
      holds_update_ = true;
      report.seconds = seconds(Clock::now() - begin);
      return report;
    });
  }

  Result<void> gradient(std::span<const float> weights, const TrainSettings& settings,
                        std::span<float> gradient, std::stop_token stop) override {
    FL_ASSERT(weights.size() == layout_.elements() && gradient.size() == layout_.elements());
    return guarded([&]() -> Result<void> {
      load(flat(weights));
      const std::int64_t all = train_.size();
      for (std::int64_t at = 0; at < all; at += evaluation_batch()) {
        if (stop.stop_requested()) return Error(Errc::cancelled, "the gradient was stopped");
        if (together_ != nullptr) together_->advance();
        const std::int64_t n = std::min(evaluation_batch(), all - at);
        const Batch batch = train_.batch(at, n);
        first()
            .loss(first().forward(batch.inputs, true), batch.targets, at::Reduction::Sum)
            .div(static_cast<double>(train_.predictions()))
            .backward();
      }
      const torch::NoGradGuard no_grad;
      first().parameters().gradient.add_(first().parameters().weights, settings.weight_decay);
      std::ranges::fill(gradient, 0.0F);
      parameters_of(flat(gradient)).copy_(first().parameters().gradient);
      first().parameters().gradient.zero_();
      return success();
    });
  }

  Result<EvalReport> evaluate(std::span<const float> weights, std::stop_token stop) override {
    FL_ASSERT(weights.size() == layout_.elements());
    return guarded([&]() -> Result<EvalReport> {
      const c10::InferenceMode inference;
      load(flat(weights));
      if (holdout_.size() == 0) return EvalReport{};
      Measurement measured(first().spec(), first().parameters().target);
      for (std::int64_t at = 0; at < holdout_.size(); at += evaluation_batch()) {
        if (stop.stop_requested()) return Error(Errc::cancelled, "evaluation stopped");
        if (together_ != nullptr) together_->advance();
        const std::int64_t n = std::min(evaluation_batch(), holdout_.size() - at);
        const Batch batch = holdout_.batch(at, n);
        measured.add(first().forward(batch.inputs, false), batch.targets);
      }
      return measured.report(holdout_);
    });
  }

  Result<std::unique_ptr<CodecDevice>> make_codec_device() override {
#ifdef FL_HAS_CUDA
    if (device_.is_cuda()) {
      return guarded([&]() -> Result<std::unique_ptr<CodecDevice>> {
        const char* error = nullptr;
        auto device = cuda::make_codec_device(error);
        if (device) return device;
        // libtorch's cache may hold all of the device's memory after a training.
        c10::getDeviceAllocator(device_.type())->emptyCache();
        device = cuda::make_codec_device(error);
        if (device) return device;
        return Error(Errc::unavailable, fmt::format("CUDA: {}", error));
      });
    }
#endif
    return std::unique_ptr<CodecDevice>();
  }

  const float* update_on_device() override {
    if (!device_.is_cuda() || !holds_update_) return nullptr;
    return first().parameters().model.const_data_ptr<float>();
  }

 private:
  // Wraps the caller's vector in a tensor, which is valid as long as the vector.
  static torch::Tensor flat(std::span<const float> values) {
    return torch::from_blob(const_cast<float*>(values.data()),
                            {static_cast<std::int64_t>(values.size())}, torch::kFloat32);
  }

  Learner& first() { return learners_.front(); }
  [[nodiscard]] std::int64_t evaluation_batch() const {
    const ModelSpec& spec = learners_.front().spec();
    if (spec.task != ModelSpec::Task::language) return evaluated_at_once;
    return std::max<std::int64_t>(1, bytes_evaluated_at_once / spec.input[0]);
  }

  /// The parameters' part of a tensor with model.size(0) values.
  torch::Tensor parameters_of(const torch::Tensor& values) {
    return values.narrow(0, 0, first().parameters().weights.size(0));
  }

  void load(const torch::Tensor& weights) {
    holds_update_ = false;
    first().parameters().load(weights);
    const torch::NoGradGuard no_grad;
    // A training that was stopped may have left gradients.
    for (Learner& learner : learners_) learner.parameters().gradient.zero_();
  }

  /// Trains with all learners. The first one runs in this thread, each other one in its own.
  Result<TrainReport> run_threads(LocalRun& run) {
    std::vector<Result<LocalShare>> shares(learners_.size(), LocalShare());
    const auto work = [&](std::size_t number) {
      shares[number] = guarded([&] { return learners_[number].train(run, train_, number); });
      if (!shares[number]) run.begun = run.steps;  // Makes the other threads end too.
    };
    {
      std::vector<std::jthread> threads;
      for (std::size_t number = 1; number < learners_.size(); ++number)
        threads.emplace_back(work, number);
      work(0);
    }
    LocalShare all;
    for (const auto& share : shares) {
      if (!share) return share.error();
      all.steps += share->steps;
      all.predictions += share->predictions;
      all.loss_sum += share->loss_sum;
      all.fall_backs += share->fall_backs;
    }
    return TrainReport{.examples = train_examples(),
                       .steps = all.steps,
                       .loss = all.loss_sum / static_cast<double>(all.predictions),
                       .seconds = 0,
                       .fall_backs = all.fall_backs,
                       .predictions = train_.told_predictions()};
  }

  [[nodiscard]] std::int64_t ranks() const { return together_ == nullptr ? 1 : together_->size(); }
  [[nodiscard]] bool is_first_rank() const {
    return together_ == nullptr || together_->rank() == 0;
  }

  /// What ranks have of their own after their steps together: the loss of their examples, and the
  /// statistics of BatchNorms.
  void join(TrainReport& report) {
    torch::Tensor statistics = first().parameters().model.narrow(
        0, first().parameters().weights.size(0),
        first().parameters().model.size(0) - first().parameters().weights.size(0));
    if (statistics.size(0) > 0) {
      torch::Tensor sums = statistics.to(torch::kFloat64);
      together_->sum(sums);
      statistics.copy_(sums.div_(static_cast<double>(ranks())));
    }
    torch::Tensor loss = torch::full({1}, report.loss, torch::dtype(torch::kFloat64));
    loss = loss.to(device_);
    together_->sum(loss);
    report.loss = loss.item<double>();
  }

  /// The moments before a round. Those of rank 0 are those of all.
  Result<void> begin_moments(std::uint32_t round, Moments& moments) {
    if (is_first_rank()) {
      FL_TRY(moments, kept_->before(run_key_, round));
    }
    if (together_ == nullptr) return {};
    const auto parameters = static_cast<std::size_t>(first().parameters().weights.size(0));
    torch::Tensor told = torch::tensor({static_cast<std::int64_t>(moments.first.size()),
                                        static_cast<std::int64_t>(moments.second.size()),
                                        static_cast<std::int64_t>(moments.steps)},
                                       torch::kInt64)
                             .to(device_);
    together_->broadcast(told);
    moments.steps = static_cast<std::uint64_t>(told[2].item<std::int64_t>());
    for (const auto& [values, index] : {std::pair(&moments.first, 0), {&moments.second, 1}}) {
      const auto n = static_cast<std::size_t>(told[index].item<std::int64_t>());
      if (n != parameters) continue;
      values->resize(n);
      torch::Tensor shared = flat(*values).to(device_);
      together_->broadcast(shared);
      flat(*values).copy_(shared);
    }
    return {};
  }

  // The last step may have overflowed; no loss is computed after it that would show that.
  Result<void> check_finite(std::span<const float> update, const TrainSettings& settings,
                            std::uint64_t steps) const {
    const std::size_t bad = kernels().scan(update.data(), update.size()).first_bad;
    if (bad == update.size()) return {};
    return Error(Errc::invalid_input,
                 fmt::format("round {}: after step {} the update of {} is {}", settings.round,
                             steps, layout_.describe(bad), update[bad]));
  }

  StepSync* together_;  // Null: it trains alone.
  std::string model_;
  Layout layout_;
  torch::Device device_;
  std::uint64_t client_seed_;
  std::vector<Learner> learners_;
  Examples train_;
  Examples holdout_;
  LocalData data_;
  Abilities abilities_;
  std::optional<KeptMoments> kept_;
  std::string run_key_;
  bool holds_update_ = false;  // The first learner's model tensor holds the update, not weights.
};

}  // namespace

TorchDevices torch_devices() {
  TorchDevices found;
  found.version = TORCH_VERSION;
#ifdef FL_TORCH_HAS_CUDA
  found.has_cuda = true;
#endif
  found.count = static_cast<int>(torch::cuda::device_count());
  return found;
}

Result<std::unique_ptr<Trainer>> make_torch_trainer(const LearnOptions& options, LocalData data) {
  return make_torch_trainer(options, std::move(data), nullptr);
}

Result<std::unique_ptr<Trainer>> make_torch_trainer(const LearnOptions& options, LocalData data,
                                                    StepSync* together) {
  FL_TRY(const ModelSpec spec, parse_model(options.model));
  FL_CHECK(check_fit(spec, options.model, data));
  if (options.threads < 0) {
    return Error(Errc::invalid_input,
                 fmt::format("threads {}: must be at least 0", options.threads));
  }
  return guarded([&]() -> Result<std::unique_ptr<Trainer>> {
    FL_TRY(const torch::Device device, find_device(options.device));
    FL_TRY(const PrecisionPlan precision, parse_precision(options.precision));
    FL_TRY(Layout layout, builtin_layout(options.model));
    if (options.keep_moments && options.hogwild > 1) {
      return Error(Errc::invalid_input,
                   "--keep-moments and --hogwild don't go together: its threads have moments of "
                   "their own");
    }
    if (together != nullptr && options.hogwild > 1) {
      return Error(Errc::invalid_input,
                   "--hogwild and the ranks of a site don't go together: ranks share each step");
    }
    if (options.hogwild < 1 || (options.hogwild > 1 && device.is_cuda())) {
      return Error(Errc::invalid_input,
                   fmt::format("hogwild {}: must be 1 or more, and 1 on a GPU", options.hogwild));
    }
    std::vector<Learner> learners;
    for (int number = 0; number < options.hogwild; ++number) {
      const auto values = learners.empty() ? torch::Tensor() : learners[0].parameters().model;
      FL_TRY(Learner learner, Learner::make(options.model, device, precision, values));
      learners.push_back(std::move(learner));
    }
    torch::set_num_threads(std::max(1, threads_for(options.threads) / options.hogwild));
    if (device.is_cpu()) keep_freed_memory();
    return std::unique_ptr<Trainer>(std::make_unique<TorchTrainer>(
        options, std::move(layout), std::move(learners), std::move(data), device, together));
  });
}

}  // namespace fl
