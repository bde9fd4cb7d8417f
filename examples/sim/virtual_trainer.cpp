// SPDX-License-Identifier: Apache-2.0
#include "examples/sim/virtual_trainer.hpp"

#include "client/learn/data/fit.hpp"
#include "client/learn/data/random.hpp"
#include "client/learn/synthetic_trainer.hpp"
#include "shared/params/model_table.hpp"

#include <numeric>
#include <utility>
#include <vector>

namespace fl::sim {

namespace {

class VirtualTrainer final : public Trainer {
 public:
  VirtualTrainer(const SharedLearning& shared, std::uint32_t shard, std::uint64_t client_seed)
      : shared_(shared), shard_(shard), client_seed_(client_seed) {}

  const Layout& layout() const override { return shared_.layout; }
  std::uint64_t train_examples() const override {
    return shared_.data.empty() ? synthetic_examples : examples_in(shared_.data[shard_].train);
  }
  std::uint64_t holdout_examples() const override {
    return shared_.data.empty() ? 0 : examples_in(shared_.data[shard_].holdout);
  }
  std::vector<ColumnSummary> summaries() const override { return summarise(shared_.spec, data()); }
  std::span<const MetricKind> metrics() const override {
    return builtin_metrics(shared_.options.model);
  }
  Abilities abilities() const override { return abilities_of(shared_.options); }
  void enter_run(const std::string& run_key) override { run_key_ = run_key; }
  Result<std::vector<float>> initial_weights(std::uint64_t seed) const override {
    return builtin_initial_weights(shared_.options.model, seed).value();
  }
  Result<TrainReport> train(std::span<const float> global, const TrainSettings& settings,
                            std::span<const float> correction, std::span<float> update,
                            std::stop_token stop) override {
    FL_TRY(const auto trainer, make_to_train());
    TrainSettings own = settings;
    own.local_epochs = epochs_of(settings);
    FL_TRY(const TrainReport report, trainer->train(global, own, correction, update, stop));
    if (!is_malicious()) return report;
    const Attack& attack = shared_.attack;
    if (attack.is_omniscient()) {
      FL_TRY(const HonestUpdates honest, train_as_others(global, settings, correction, stop));
      honest.write(attack, update);
    } else {
      const double factor =
          attack.kind == Attack::Kind::sign_flip ? -attack.strength : attack.strength;
      for (float& value : update) value = static_cast<float>(factor * value);
    }
    return report;
  }
  Result<void> gradient(std::span<const float> weights, const TrainSettings& settings,
                        std::span<float> gradient, std::stop_token stop) override {
    FL_TRY(const auto trainer, make());
    return trainer->gradient(weights, settings, gradient, std::move(stop));
  }
  Result<EvalReport> evaluate(std::span<const float> weights, std::stop_token stop) override {
    if (holdout_examples() == 0) return EvalReport{};
    FL_TRY(const auto trainer, make());
    return trainer->evaluate(weights, std::move(stop));
  }

 private:
  [[nodiscard]] std::uint64_t examples_in(std::span<const std::uint32_t> chosen) const {
    return fl::examples_in(shared_.spec, *shared_.data[shard_].all, chosen);
  }
  [[nodiscard]] bool is_malicious() const {
    return shared_.attack.kind != Attack::Kind::none && shard_ < shared_.malicious;
  }
  /// The updates that the honest clients make in this round.
  Result<HonestUpdates> train_as_others(std::span<const float> global,
                                        const TrainSettings& settings,
                                        std::span<const float> correction, std::stop_token stop) {
    HonestUpdates honest;
    std::vector<float> update(global.size());
    for (std::uint32_t shard = shared_.malicious; shard < shared_.options.shards; ++shard) {
      const VirtualTrainer other(shared_, shard, shared_.client_seed(shard));
      TrainSettings own = settings;
      own.seed = shared_.task_seed(settings.round, shard);
      own.local_epochs = other.epochs_of(own);
      FL_TRY(const auto trainer, other.make_to_train());
      FL_TRY([[maybe_unused]] const TrainReport report,
             trainer->train(global, own, correction, update, stop));
      honest.add(update);
    }
    return honest;
  }
  [[nodiscard]] std::uint32_t epochs_of(const TrainSettings& settings) const {
    const std::uint32_t least = shared_.epochs_from;
    if (least == 0 || settings.local_epochs <= least) return settings.local_epochs;
    // Use another seed than the trainer, so that the two random sequences are independent.
    constexpr std::uint64_t of_epochs = 0x65706f636873;
    Random random(mix_seeds(settings.seed, of_epochs), 0);
    return least + random.below(settings.local_epochs - least + 1);
  }
  [[nodiscard]] LocalData data() const {
    return shared_.data.empty() ? LocalData() : shared_.data[shard_];
  }
  [[nodiscard]] Result<std::unique_ptr<Trainer>> make(LocalData data) const {
    LearnOptions options = shared_.options;
    options.client_seed = client_seed_;
    if (options.keep_moments) options.state = shared_.folder(shard_);
    FL_TRY(auto trainer, make_trainer(options, std::move(data)));
    trainer->enter_run(run_key_);
    return trainer;
  }
  [[nodiscard]] Result<std::unique_ptr<Trainer>> make() const { return make(data()); }
  /// With poisoned data, if this client's attack wants that.
  [[nodiscard]] Result<std::unique_ptr<Trainer>> make_to_train() const {
    LocalData own = data();
    if (!is_malicious() || own.all == nullptr) return make(std::move(own));
    DataSet poisoned = own.all->select(own.train);
    FL_CHECK(poison(shared_.attack, poisoned));
    std::iota(own.train.begin(), own.train.end(), 0U);
    own.all = std::make_shared<const DataSet>(std::move(poisoned));
    own.holdout.clear();
    return make(std::move(own));
  }

  const SharedLearning& shared_;
  std::uint32_t shard_;
  std::uint64_t client_seed_;
  std::string run_key_;
};

}  // namespace

Result<SharedLearning> load_shared_learning(LearnOptions options) {
  FL_TRY(Layout layout, builtin_layout(options.model));
  FL_TRY(ModelSpec spec, parse_model(options.model));
  SharedLearning shared{.options = std::move(options),
                        .spec = std::move(spec),
                        .layout = std::move(layout),
                        .data = {}};
  if (shared.options.model.starts_with("synthetic:")) {
    FL_TRY([[maybe_unused]] const auto trainer, make_trainer(shared.options));
    return shared;
  }
  // Check the model before the data is read, and afterwards that they fit each other.
  FL_TRY([[maybe_unused]] const auto without, make_trainer(shared.options, LocalData()));
  FL_TRY(shared.data, load_divided_data(shared.options));
  LocalData whole{.all = shared.data.at(0).all, .train = {}, .holdout = {}};
  whole.train.resize(whole.all->size());
  std::iota(whole.train.begin(), whole.train.end(), 0U);
  FL_CHECK(check_values(shared.options.model, whole));
  FL_TRY([[maybe_unused]] const auto with, make_trainer(shared.options, shared.data.at(0)));
  return shared;
}

std::unique_ptr<Trainer> make_virtual_trainer(const SharedLearning& shared, std::uint32_t shard,
                                              std::uint64_t client_seed) {
  return std::make_unique<VirtualTrainer>(shared, shard, client_seed);
}

}  // namespace fl::sim
