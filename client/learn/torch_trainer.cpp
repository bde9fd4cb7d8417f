#include "client/learn/torch_trainer.hpp"

#include "client/learn/loss_scale.hpp"
#include "client/learn/random.hpp"
#include "client/learn/torch_models.hpp"
#include "kernels/kernels.hpp"
#include "shared/base/clock.hpp"
#include "shared/params/model_table.hpp"

#include <ATen/autocast_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <thread>
#include <utility>

namespace fl {

namespace {

constexpr std::int64_t evaluation_batch = 500;

// What libtorch throws (out of memory, a lost device) as an error.
template <class Function>
auto guarded(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const c10::Error& error) {
    return Error(Errc::internal, fmt::format("libtorch: {}", error.what_without_backtrace()));
  } catch (const std::exception& error) {
    return Error(Errc::internal, fmt::format("libtorch: {}", error.what()));
  }
}

Result<torch::Device> find_device(const std::string& name) {
  if (name == "cpu") return torch::Device(torch::kCPU);
  if (name != "cuda" && name != "auto") {
    return Error(Errc::invalid_input,
                 fmt::format("there is no device \"{}\"; there are: cpu cuda auto", name));
  }
  if (torch::cuda::is_available()) return torch::Device(torch::kCUDA);
  if (name == "auto") return torch::Device(torch::kCPU);
  return Error(Errc::invalid_input,
               "device \"cuda\": libtorch finds none (no GPU, no driver, or a libtorch without "
               "CUDA); there is: cpu");
}

Result<torch::ScalarType> find_precision(const std::string& name) {
  if (name == "fp32") return torch::kFloat32;
  if (name == "bf16") return torch::kBFloat16;
  if (name == "fp16") return torch::kFloat16;
  return Error(Errc::invalid_input,
               fmt::format("there is no precision \"{}\"; there are: fp32 bf16 fp16", name));
}

// While it lives, this thread's operations that gain by it are of `type`, as under torch.autocast
// in Python.
class Autocast {
 public:
  Autocast(torch::Device device, torch::ScalarType type) : device_(device.type()) {
    at::autocast::set_autocast_dtype(device_, type);
    at::autocast::set_autocast_enabled(device_, type != torch::kFloat32);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(device_, false);
    at::autocast::clear_cache();  // Of the weights, which the next step changes.
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
};

// Settings come from the server, and are checked like everything that does.
Result<void> check(const TrainSettings& s) {
  const auto refuse = [&](std::string_view what, auto value, std::string_view wanted) {
    return Error(Errc::invalid_input,
                 fmt::format("round {}: {} {}: must be {}", s.round, what, value, wanted));
  };
  // libtorch throws at a factor that a float can't hold. NaN is refused too.
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
  if (!is_factor(s.proximal_mu)) {
    return refuse("proximal_mu", s.proximal_mu, "from 0 to what a float can hold");
  }
  return {};
}

// Images and labels on the device that trains, loaded once.
struct Examples {
  torch::Tensor images;  // fp32 [n, 1, rows, columns] in [0, 1]
  torch::Tensor labels;  // int64 [n]

  Examples(const ImageSet& set, torch::Device device) {
    const std::int64_t n = set.size();
    const auto bytes_of = [](const std::vector<std::uint8_t>& values, at::IntArrayRef shape) {
      // from_blob wants a mutable pointer; the tensor is only read, before this function returns.
      return torch::from_blob(const_cast<std::uint8_t*>(values.data()), shape, torch::kUInt8);
    };
    images = bytes_of(set.pixels, {n, 1, set.rows, set.columns})
                 .to(torch::kFloat32)
                 .div_(255)
                 .to(device);
    labels = bytes_of(set.labels, {n}).to(torch::kInt64).to(device);
  }

  [[nodiscard]] std::int64_t size() const { return labels.size(0); }
};

// The example indices of one step after the other, in a fresh order every epoch.
class Batches {
 public:
  Batches(std::int64_t examples, const TrainSettings& settings, std::uint64_t seed,
          torch::Device device)
      : examples_(examples),
        batch_size_(static_cast<std::int64_t>(
            std::min(std::uint64_t{settings.batch_size} * settings.accumulate,
                     static_cast<std::uint64_t>(examples)))),
        seed_(seed),
        device_(device) {}

  [[nodiscard]] std::uint64_t per_epoch() const {
    return static_cast<std::uint64_t>((examples_ + batch_size_ - 1) / batch_size_);
  }

  /// int64 [batch_size], or shorter at the end of an epoch.
  torch::Tensor next() {
    if (at_ == 0) shuffle();
    const std::int64_t n = std::min(batch_size_, examples_ - at_);
    const torch::Tensor batch = order_.narrow(0, at_, n);
    at_ = at_ + n == examples_ ? 0 : at_ + n;
    return batch;
  }

 private:
  void shuffle() {
    const auto indices = shuffled_indices(static_cast<std::uint32_t>(examples_), seed_, epoch_++);
    const torch::Tensor order = torch::empty({examples_}, torch::kInt64);
    std::ranges::copy(indices, order.data_ptr<std::int64_t>());
    order_ = order.to(device_);
  }

  std::int64_t examples_;
  std::int64_t batch_size_;
  std::uint64_t seed_;
  torch::Device device_;
  std::uint64_t epoch_ = 0;
  std::int64_t at_ = 0;
  torch::Tensor order_;
};

// The local optimizers, on flat vectors. One object for one round, so their state starts from zero.
class Optimizer {
 public:
  /// `correction`: undefined for none.
  Optimizer(const TrainSettings& settings, FlatParameters& parameters, const torch::Tensor& global,
            torch::Tensor correction)
      : settings_(settings),
        parameters_(parameters),
        global_(global),
        correction_(std::move(correction)) {
    const bool has_moments = !settings.optimizer.is_sgd();
    if (settings.momentum > 0 || has_moments) first_ = torch::zeros_like(parameters.weights);
    if (has_moments) second_ = torch::zeros_like(parameters.weights);
  }

  /// Takes one step along the gradient, and sets the gradient to zero for the next.
  void step() {
    const torch::NoGradGuard no_grad;
    torch::Tensor& w = parameters_.weights;
    torch::Tensor& g = parameters_.gradient;
    const bool is_decoupled = settings_.optimizer.kind == LocalOptimizer::Kind::adamw;
    if (settings_.weight_decay > 0) {
      if (is_decoupled) {
        w.mul_(1 - settings_.lr * settings_.weight_decay);
      } else {
        g.add_(w, settings_.weight_decay);
      }
    }
    if (settings_.proximal_mu > 0) g.add_(w - global_, settings_.proximal_mu);
    if (correction_.defined()) g.add_(correction_);
    if (settings_.optimizer.is_sgd()) {
      step_by_momentum(w, g);
    } else {
      step_by_moments(w, g);
    }
    g.zero_();
  }

 private:
  void step_by_momentum(torch::Tensor& w, const torch::Tensor& g) {
    if (settings_.momentum == 0) {
      w.add_(g, -settings_.lr);
      return;
    }
    first_.mul_(settings_.momentum).add_(g);
    if (settings_.optimizer.kind == LocalOptimizer::Kind::nesterov) {
      w.add_(g, -settings_.lr).add_(first_, -settings_.lr * settings_.momentum);
    } else {
      w.add_(first_, -settings_.lr);
    }
  }

  /// With bias correction, as in the papers and in PyTorch.
  void step_by_moments(torch::Tensor& w, const torch::Tensor& g) {
    const LocalOptimizer& o = settings_.optimizer;
    ++steps_;
    first_.mul_(o.beta1).add_(g, 1 - o.beta1);
    second_.mul_(o.beta2).addcmul_(g, g, 1 - o.beta2);
    const double bias1 = 1 - std::pow(o.beta1, steps_);
    const double bias2 = 1 - std::pow(o.beta2, steps_);
    const torch::Tensor scale = second_.sqrt().div_(std::sqrt(bias2)).add_(o.epsilon);
    w.addcdiv_(first_, scale, -settings_.lr / bias1);
  }

  const TrainSettings& settings_;
  FlatParameters& parameters_;
  const torch::Tensor& global_;
  torch::Tensor correction_;
  torch::Tensor first_;   // Momentum, or Adam's first moment,
  torch::Tensor second_;  // and its second.
  double steps_ = 0;
};

class TorchTrainer final : public Trainer {
 public:
  TorchTrainer(std::string model, Layout layout, Module module, const LocalData& data,
               torch::Device device, torch::ScalarType precision, std::uint64_t client_seed)
      : model_(std::move(model)),
        layout_(std::move(layout)),
        device_(device),
        precision_(precision),
        client_seed_(client_seed),
        module_(std::move(module)),
        parameters_(module_, layout_, device),
        train_(data.train, device),
        holdout_(data.holdout, device) {}

  const Layout& layout() const override { return layout_; }
  std::uint64_t train_examples() const override { return train_.size(); }
  std::uint64_t holdout_examples() const override { return holdout_.size(); }

  std::vector<float> initial_weights(std::uint64_t seed) const override {
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
      torch::Tensor added;
      if (!correction.empty()) added = flat(correction).to(device_);
      const TimePoint end = settings.local_seconds > 0
                                ? begin + std::chrono::duration_cast<Duration>(
                                              std::chrono::duration<double>(settings.local_seconds))
                                : never;
      FL_TRY(TrainReport report, run_steps(start, settings, end, std::move(added), stop));
      flat(update).copy_(parameters_.weights.sub_(start));
      FL_CHECK(check_finite(update, settings, report.steps));
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
      for (std::int64_t at = 0; at < all; at += evaluation_batch) {
        if (stop.stop_requested()) return Error(Errc::cancelled, "the gradient was stopped");
        const std::int64_t n = std::min(evaluation_batch, all - at);
        const torch::Tensor logits = module_->forward(train_.images.narrow(0, at, n));
        torch::cross_entropy_loss(logits, train_.labels.narrow(0, at, n), {}, at::Reduction::Sum)
            .div(static_cast<double>(all))
            .backward();
      }
      const torch::NoGradGuard no_grad;
      parameters_.gradient.add_(parameters_.weights, settings.weight_decay);
      flat(gradient).copy_(parameters_.gradient);
      parameters_.gradient.zero_();
      return success();
    });
  }

  Result<EvalReport> evaluate(std::span<const float> weights, std::stop_token stop) override {
    FL_ASSERT(weights.size() == layout_.elements());
    return guarded([&]() -> Result<EvalReport> {
      const c10::InferenceMode inference;
      load(flat(weights));
      double loss = 0;
      std::int64_t right = 0;
      for (std::int64_t at = 0; at < holdout_.size(); at += evaluation_batch) {
        if (stop.stop_requested()) return Error(Errc::cancelled, "evaluation stopped");
        const std::int64_t n = std::min(evaluation_batch, holdout_.size() - at);
        const torch::Tensor labels = holdout_.labels.narrow(0, at, n);
        const torch::Tensor logits = module_->forward(holdout_.images.narrow(0, at, n));
        loss += torch::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum).item<double>();
        right += logits.argmax(1).eq(labels).sum().item<std::int64_t>();
      }
      const auto examples = holdout_examples();
      if (examples == 0) return EvalReport{};
      const auto n = static_cast<double>(examples);
      return EvalReport{examples, loss / n, static_cast<double>(right) / n};
    });
  }

 private:
  // The caller's vector as a tensor; valid as long as the vector is.
  static torch::Tensor flat(std::span<const float> values) {
    return torch::from_blob(const_cast<float*>(values.data()),
                            {static_cast<std::int64_t>(values.size())}, torch::kFloat32);
  }

  void load(const torch::Tensor& weights) {
    const torch::NoGradGuard no_grad;
    parameters_.weights.copy_(weights);
    parameters_.gradient.zero_();  // A round that was stopped may have left one.
  }

  /// No step begins after `end` but the first.
  Result<TrainReport> run_steps(const torch::Tensor& start, const TrainSettings& settings,
                                TimePoint end, torch::Tensor correction,
                                const std::stop_token& stop) {
    Batches batches(train_.size(), settings, mix_seeds(settings.seed, client_seed_), device_);
    Optimizer optimizer(settings, parameters_, start, std::move(correction));
    const std::uint64_t steps = steps_max(settings, batches.per_epoch());
    double loss_sum = 0;
    std::int64_t seen = 0;
    LossScale scale;
    std::uint64_t step = 0;
    while (step < steps && (step == 0 || Clock::now() < end)) {
      const auto place = [&] {
        return fmt::format("round {}, step {} of {}", settings.round, step + 1, steps);
      };
      if (stop.stop_requested()) return Error(Errc::cancelled, "training stopped").at(place());
      const torch::Tensor batch = batches.next();
      const double loss = add_gradient(batch, settings.batch_size, scale);
      if (!std::isfinite(loss)) {
        return Error(Errc::invalid_input, fmt::format("the loss is {}", loss)).at(place());
      }
      if (scale.is_spent()) {
        return Error(Errc::invalid_input, "the gradient overflows fp16").at(place());
      }
      if (!take_scale_out(scale)) continue;
      optimizer.step();
      ++step;
      loss_sum += loss * static_cast<double>(batch.size(0));
      seen += batch.size(0);
    }
    return TrainReport{.examples = train_examples(),
                       .steps = step,
                       .loss = loss_sum / static_cast<double>(seen),
                       .seconds = 0};
  }

  /// Adds the scaled gradient of the mean loss of these examples, `at_once` of them at a time, and
  /// returns that loss.
  double add_gradient(const torch::Tensor& batch, std::int64_t at_once, const LossScale& scale) {
    const std::int64_t all = batch.size(0);
    double mean = 0;
    for (std::int64_t at = 0; at < all; at += at_once) {
      const torch::Tensor part = batch.narrow(0, at, std::min(at_once, all - at));
      const double share = static_cast<double>(part.size(0)) / static_cast<double>(all);
      const torch::Tensor images = train_.images.index_select(0, part);
      const torch::Tensor logits = [&] {
        const Autocast autocast(device_, precision_);
        return module_->forward(images).to(torch::kFloat32);
      }();
      torch::Tensor loss =
          torch::cross_entropy_loss(logits, train_.labels.index_select(0, part)) * share;
      mean += loss.item<double>();
      if (precision_ == torch::kFloat16) loss = loss * scale.factor();
      loss.backward();
    }
    return mean;
  }

  /// False: the gradient has overflowed, and is no longer there. Only fp16 has a scale.
  bool take_scale_out(LossScale& scale) {
    if (precision_ != torch::kFloat16) return true;
    const torch::NoGradGuard no_grad;
    torch::Tensor& gradient = parameters_.gradient;
    gradient.mul_(1 / scale.factor());
    const bool is_finite = gradient.isfinite().all().item<bool>();
    scale.note(!is_finite);
    if (!is_finite) gradient.zero_();
    return is_finite;
  }

  // The last step may have overflowed, which no loss was computed to show.
  Result<void> check_finite(std::span<const float> update, const TrainSettings& settings,
                            std::uint64_t steps) const {
    const std::size_t bad = kernels().scan(update.data(), update.size()).first_bad;
    if (bad == update.size()) return {};
    return Error(Errc::invalid_input,
                 fmt::format("round {}: after step {} {} is {}", settings.round, steps,
                             layout_.describe(bad), update[bad]));
  }

  std::string model_;
  Layout layout_;
  torch::Device device_;
  torch::ScalarType precision_;
  std::uint64_t client_seed_;
  Module module_;
  FlatParameters parameters_;
  Examples train_;
  Examples holdout_;
};

Result<void> check_images(const ImageSet& set, const LearnOptions& options) {
  if (set.size() == 0) return {};
  if (set.rows == model_image_side && set.columns == model_image_side) return {};
  return Error(Errc::invalid_input,
               fmt::format("model \"{}\" takes images of {} x {} pixels, but those of \"{}\" are "
                           "{} x {}",
                           options.model, model_image_side, model_image_side, options.data,
                           set.rows, set.columns));
}

}  // namespace

Result<std::unique_ptr<Trainer>> make_torch_trainer(const LearnOptions& options, LocalData data) {
  FL_CHECK(check_images(data.train, options));
  FL_CHECK(check_images(data.holdout, options));
  if (options.threads < 0) {
    return Error(Errc::invalid_input,
                 fmt::format("threads {}: must be at least 0", options.threads));
  }
  return guarded([&]() -> Result<std::unique_ptr<Trainer>> {
    FL_TRY(const torch::Device device, find_device(options.device));
    FL_TRY(const torch::ScalarType precision, find_precision(options.precision));
    FL_TRY(Layout layout, builtin_layout(options.model));
    FL_TRY(Module module, make_module(options.model));
    const auto hardware = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    torch::set_num_threads(options.threads > 0 ? options.threads : hardware);
    return std::unique_ptr<Trainer>(std::make_unique<TorchTrainer>(options.model, std::move(layout),
                                                                   std::move(module), data, device,
                                                                   precision, options.client_seed));
  });
}

}  // namespace fl
