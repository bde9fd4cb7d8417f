// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch/torch_trainer.hpp"

#include "client/learn/data/fit.hpp"
#include "client/learn/data/random.hpp"
#include "client/learn/precision.hpp"
#include "client/learn/torch/find_device.hpp"
#include "client/learn/torch/freed_memory.hpp"
#include "client/learn/torch/guarded.hpp"
#include "client/learn/torch/round_moments.hpp"
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

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

namespace fl {

namespace {

/// TrainReport::setup of a process by itself.
std::string setup_of(const LearnOptions& options, torch::Device device) {
  std::string setup = fmt::format("{}, {}", device.is_cpu() ? "cpu" : "cuda", options.precision);
  if (options.recomputes) setup += ", recompute full";
  if (options.offloads_optimizer) setup += ", offload optimizer";
  if (options.hogwild > 1) setup += fmt::format(", hogwild {}", options.hogwild);
  return setup;
}

/// values -= start, where `start` may lie on another device; then it comes over in stretches.
void subtract_start(const torch::Tensor& start, const torch::Tensor& values) {
  constexpr std::int64_t at_once = 1 << 24;
  for (std::int64_t at = 0; at < values.size(0); at += at_once) {
    const std::int64_t count = std::min(at_once, values.size(0) - at);
    values.narrow(0, at, count).sub_(start.narrow(0, at, count).to(values.device()));
  }
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
        options_(options),
        layout_(std::move(layout)),
        device_(device),
        optimizer_device_(options.offloads_optimizer ? torch::kCPU : device),
        learners_(std::move(learners)),
        train_(data.all, data.train, first().spec(), device),
        holdout_(data.all, data.holdout, first().spec(), device),
        data_(std::move(data)) {
    if (options.keep_moments) moments_.emplace(options.state, together, device);
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
  std::span<const MetricKind> metrics() const override { return builtin_metrics(options_.model); }
  Abilities abilities() const override { return abilities_of(options_); }
  void enter_run(const std::string& run_key) override { run_key_ = run_key; }
  bool takes_steps_together() const override { return learners_.size() > 1; }

  Result<std::vector<float>> initial_weights(std::uint64_t seed) const override {
    return builtin_initial_weights(options_.model, seed).value();
  }

  Result<TrainReport> train(std::span<const float> global, const TrainSettings& settings,
                            std::span<const float> correction, std::span<float> update,
                            std::stop_token stop) override {
    FL_ASSERT(global.size() == layout_.elements());
    FL_ASSERT(update.size() == layout_.elements() || (update.empty() && !is_first_rank()));
    FL_ASSERT(correction.empty() || correction.size() == layout_.elements());
    FL_CHECK(check(settings));
    if (train_.size() == 0) {
      return Error(Errc::invalid_input, "this client holds no examples to train on");
    }
    return guarded([&]() -> Result<TrainReport> {
      const TimePoint begin = Clock::now();
      HeldParameters& held = first().parameters();
      held.prepare();
      load(global);
      const std::vector<Piece> pieces = held.stepped_pieces();
      const torch::Tensor stepped = held.stepped(held.weights());
      const torch::Tensor start = read_pieces(global, pieces, stepped.size(0), optimizer_device_);
      const torch::Tensor first_statistics =
          read_pieces(global, statistics_pieces(), held.statistics().size(0), device_);
      LocalRun run{.settings = settings, .start = start, .stop = std::move(stop)};
      if (!correction.empty())
        run.correction = read_pieces(correction, pieces, stepped.size(0), optimizer_device_);
      run.seed = mix_seeds(settings.seed, options_.client_seed);
      run.together = together_;
      const std::int64_t step_size = step_examples(settings, train_.size(), ranks());
      run.steps = steps_max(settings, (train_.size() + step_size - 1) / step_size);
      if (settings.local_seconds > 0) {
        run.end = begin + std::chrono::duration_cast<Duration>(
                              std::chrono::duration<double>(settings.local_seconds));
      }
      Moments moments;
      if (moments_) {
        FL_TRY(moments, moments_->before(run_key_, settings.round, held));
        run.moments = &moments;
      }
      FL_TRY(TrainReport report, run_threads(run));
      if (together_ != nullptr) join(report);
      subtract_start(start, stepped);
      held.statistics().sub_(first_statistics);
      // The copies wait for the device, so nothing that reads the update there later has to.
      if (!update.empty()) {
        write_pieces(stepped, held.written_pieces(), update);
        write_pieces(held.statistics(), statistics_pieces(), update);
      }
      FL_CHECK(check_finite(update, settings, report.steps));
      if (moments_) FL_CHECK(moments_->keep(run_key_, settings.round, held, moments));
      holds_update_ = true;
      report.seconds = seconds(Clock::now() - begin);
      return report;
    });
  }

  Result<void> gradient(std::span<const float> weights, const TrainSettings& settings,
                        std::span<float> gradient, std::stop_token stop) override {
    FL_ASSERT(weights.size() == layout_.elements());
    FL_ASSERT(gradient.size() == layout_.elements() || (gradient.empty() && !is_first_rank()));
    return guarded([&]() -> Result<void> {
      HeldParameters& held = first().parameters();
      held.prepare();
      load(weights);
      // Hooks, which may compress, are for steps: ranks that don't need each other add up in the
      // end.
      const bool is_joint = together_ != nullptr && together_->passes_are_joint();
      const double own_weight = is_joint ? static_cast<double>(together_->gradient_parts()) : 1;
      const bool takes_all = together_ != nullptr && passes().are_joint(*together_);
      const auto places = places_of(train_.size(), takes_all);
      const auto all = static_cast<double>(train_.predictions());
      passes().take(TrainingPasses{
          .count = std::ssize(places),
          .at = [&](std::int64_t number) -> TrainingPass {
            const BatchPlace& place = places[static_cast<std::size_t>(number)];
            const double weight = place.is_own ? own_weight : 0;
            const auto share = static_cast<double>(train_.predictions(place.positions())) / all;
            return {.batch = train_.batch(place.begin, place.count),
                    .mean_share = weight * share,
                    .of_sum = TrainingPass::OfSum{.divisor = all, .factor = weight}};
          },
          .together = together_,
          .reduces = is_joint,
          .stop = stop});
      if (stop.stop_requested()) return stopped();
      if (together_ != nullptr && !is_joint) {
        torch::Tensor sums = held.gradient();
        together_->sum(sums);
      }
      held.join_gradient();
      const torch::NoGradGuard no_grad;
      torch::Tensor stepped = held.stepped(held.gradient());
      stepped.add_(held.stepped(held.weights()), settings.weight_decay);
      if (!gradient.empty()) {
        write_pieces(stepped, held.written_pieces(), gradient);
        std::ranges::fill(gradient.subspan(static_cast<std::size_t>(held.parameters())), 0.0F);
      }
      held.gradient().zero_();
      return success();
    });
  }

  Result<EvalReport> evaluate(std::span<const float> weights, std::stop_token stop) override {
    FL_ASSERT(weights.size() == layout_.elements());
    return guarded([&]() -> Result<EvalReport> {
      first().parameters().prepare();
      const c10::InferenceMode inference;
      load(weights);
      if (holdout_.size() == 0) return EvalReport{};
      Measurement measured = passes().measurement();
      Routing* const routing = passes().routing();
      if (routing != nullptr) routing->clear();
      const bool takes_all = together_ != nullptr && together_->passes_are_joint();
      const auto places = places_of(holdout_.size(), takes_all);
      passes().take(EvaluationPasses{
          .count = std::ssize(places),
          .at =
              [&](std::int64_t number) {
                const BatchPlace& place = places[static_cast<std::size_t>(number)];
                return EvaluationPasses::Evaluated{holdout_.batch(place.begin, place.count),
                                                   place.is_own};
              },
          .take = [&](const torch::Tensor& outputs,
                      const torch::Tensor& targets) { measured.add(outputs, targets); },
          .together = together_,
          .stop = stop});
      if (stop.stop_requested()) return stopped();
      if (together_ != nullptr) {
        const auto sum = [this](torch::Tensor& sums) { sum_over_parts(sums); };
        measured.join(sum, together_->rank(), together_->size());
        if (routing != nullptr) sum(routing->measured());
      }
      EvalReport report = measured.report(holdout_);
      if (routing != nullptr)
        std::ranges::move(routing->metrics(), std::back_inserter(report.metrics));
      return report;
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
    if (!device_.is_cuda() || !holds_update_ || together_ != nullptr) return nullptr;
    return first().parameters().whole_model().const_data_ptr<float>();
  }

 private:
  Learner& first() { return learners_.front(); }
  Passes& passes() { return first().passes(); }
  /// A batch of data that is only measured, or whose whole gradient is wanted.
  struct BatchPlace {
    std::int64_t begin = 0;
    std::int64_t count = 0;
    bool is_own = true;  // Else this rank computes it for the sake of the others.
    [[nodiscard]] torch::Tensor positions() const {
      return torch::arange(begin, begin + count, torch::kInt64);
    }
  };
  /// This rank's batches of `all` examples; of ranks each takes every N-th, so that the batches are
  /// the same ones for any number of ranks. `takes_all`: each rank has as many as any, those that
  /// are missing with batches of others.
  [[nodiscard]] std::vector<BatchPlace> places_of(std::int64_t all, bool takes_all) const {
    const std::int64_t at_once = evaluated_together(learners_.front().spec());
    const std::int64_t batches = (all + at_once - 1) / at_once;
    const std::int64_t turns = (batches + ranks() - 1) / ranks();
    const std::int64_t rank = together_ == nullptr ? 0 : together_->rank();
    std::vector<BatchPlace> places;
    for (std::int64_t turn = 0; turn < turns; ++turn) {
      const std::int64_t number = turn * ranks() + rank;
      const bool is_own = number < batches;
      if (!is_own && !takes_all) break;
      const std::int64_t begin = (is_own ? number : 0) * at_once;
      places.push_back({.begin = begin, .count = std::min(at_once, all - begin), .is_own = is_own});
    }
    return places;
  }
  static Error stopped() { return {Errc::cancelled, "the work was stopped"}; }

  /// Adds up what ranks have measured of the parts of a batch, and of the stages of a pipeline.
  void sum_over_parts(torch::Tensor& sums) {
    together_->sum(sums);
    if (PipelineGroup* const stages = together_->groups().pipeline; stages != nullptr)
      stages->sum(sums);
  }

  void load(std::span<const float> weights) {
    holds_update_ = false;
    first().parameters().load(weights);
    const torch::NoGradGuard no_grad;
    // A training that was stopped may have left gradients.
    for (Learner& learner : learners_) learner.parameters().gradient().zero_();
  }

  /// Where the statistics lie in the model's vector.
  std::vector<Piece> statistics_pieces() {
    const HeldParameters& held = first().parameters();
    return {{held.parameters(), held.statistics().size(0), 0}};
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
                       .predictions = train_.told_predictions(),
                       .setup = setup_of(options_, device_)};
  }

  [[nodiscard]] std::int64_t ranks() const { return together_ == nullptr ? 1 : together_->size(); }
  [[nodiscard]] bool is_first_rank() const {
    return together_ == nullptr || together_->member() == 0;
  }

  /// What ranks have of their own after their steps together: the loss of their examples, and the
  /// statistics of BatchNorms.
  void join(TrainReport& report) {
    const torch::Tensor& statistics = first().parameters().statistics();
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

  /// The last step may have overflowed; no loss is computed after it that would show that. Looks at
  /// what this process has written.
  Result<void> check_finite(std::span<const float> update, const TrainSettings& settings,
                            std::uint64_t steps) {
    if (update.empty()) return {};
    std::vector<Piece> written = first().parameters().written_pieces();
    written.push_back(statistics_pieces().front());
    for (const Piece& piece : written) {
      const auto values = update.subspan(static_cast<std::size_t>(piece.begin),
                                         static_cast<std::size_t>(piece.count));
      const std::size_t bad = kernels().scan(values.data(), values.size()).first_bad;
      if (bad == values.size()) continue;
      return Error(
          Errc::invalid_input,
          fmt::format("round {}: after step {} the update of {} is {}", settings.round, steps,
                      layout_.describe(static_cast<std::size_t>(piece.begin) + bad), values[bad]));
    }
    return {};
  }

  StepSync* together_;  // Null: it trains alone.
  const LearnOptions options_;
  Layout layout_;
  torch::Device device_;
  torch::Device optimizer_device_;  // Where steps are computed.
  std::vector<Learner> learners_;
  Examples train_;
  Examples holdout_;
  LocalData data_;
  std::optional<RoundMoments> moments_;  // None: they are not kept.
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
    return_freed_memory();  // Layers take memory while they are made.
    std::vector<Learner> learners;
    for (int number = 0; number < options.hogwild; ++number) {
      FL_TRY(Learner learner,
             Learner::make(options.model, device,
                           {.precision = precision,
                            .recomputes = options.recomputes,
                            .together = together,
                            .twin = learners.empty() ? nullptr : &learners.front()}));
      learners.push_back(std::move(learner));
    }
    torch::set_num_threads(std::max(1, threads_for(options.threads) / options.hogwild));
    const bool is_joint = together != nullptr && together->passes_are_joint();
    if (device.is_cpu() && !is_joint) keep_freed_memory();
    return std::unique_ptr<Trainer>(std::make_unique<TorchTrainer>(
        options, std::move(layout), std::move(learners), std::move(data), device, together));
  });
}

}  // namespace fl
