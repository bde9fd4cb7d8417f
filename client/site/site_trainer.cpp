// SPDX-License-Identifier: Apache-2.0
// A Trainer whose work the ranks of a site do.
#include "client/learn/process/json_line.hpp"
#include "client/site/site.hpp"
#include "shared/base/log.hpp"
#include "shared/params/model_table.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl::site {

namespace {

class SiteTrainer final : public Trainer {
 public:
  SiteTrainer(std::shared_ptr<Site> site, const LearnOptions& learn, std::string model,
              Layout layout)
      : site_(std::move(site)),
        model_(std::move(model)),
        layout_(std::move(layout)),
        abilities_(abilities_of(learn)) {}

  /// Has the ranks load the model.
  Result<void> load() {
    FL_TRY(loaded_, site_->load(model_, layout_, {}));
    return {};
  }

  const Layout& layout() const override { return layout_; }
  std::uint64_t train_examples() const override { return loaded_.train; }
  std::uint64_t holdout_examples() const override { return loaded_.holdout; }
  std::span<const MetricKind> metrics() const override { return builtin_metrics(model_); }
  std::vector<ColumnSummary> summaries() const override { return loaded_.summaries; }
  Abilities abilities() const override { return abilities_; }
  void enter_run(const std::string& run_key) override { run_key_ = run_key; }

  Result<std::vector<float>> initial_weights(std::uint64_t seed) const override {
    return builtin_initial_weights(model_, seed);
  }

  Result<TrainReport> train(std::span<const float> global, const TrainSettings& settings,
                            std::span<const float> correction, std::span<float> update,
                            std::stop_token stop) override {
    const TimePoint begin = Clock::now();
    const RankWork work{.run = run_key_, .settings = settings, .files = {}};
    FL_TRY(const auto answer,
           site_->work(Site::Kind::train, work, global, correction, update, stop));
    FL_TRY(TrainReport report, parse_as<TrainReport>(answer));
    report.seconds = seconds(Clock::now() - begin);
    report.notes = site_->take_losses();
    const SyncTimes& sync = report.sync;
    log_info(
        "round {}: {} ranks trained together; each sent {:.3g} MB of gradients; {:.3g} s of "
        "computing, {:.3g} s of waiting for gradients, {:.3g} s of reducing them meanwhile",
        settings.round, sync.ranks,
        static_cast<double>(member_number(answer, "gradient_bytes")) / 1e6, sync.compute,
        sync.exposed, sync.hidden);
    return report;
  }

  Result<void> gradient(std::span<const float> weights, const TrainSettings& settings,
                        std::span<float> gradient, std::stop_token stop) override {
    const RankWork work{.run = run_key_, .settings = settings, .files = {}};
    FL_CHECK(site_->work(Site::Kind::gradient, work, weights, {}, gradient, stop));
    return {};
  }

  Result<EvalReport> evaluate(std::span<const float> weights, std::stop_token stop) override {
    if (holdout_examples() == 0) return EvalReport{};
    FL_TRY(const auto answer, site_->work(Site::Kind::evaluate, {}, weights, {}, {}, stop));
    return parse_as<EvalReport>(answer);
  }

 private:
  std::shared_ptr<Site> site_;
  std::string model_;
  Layout layout_;
  Abilities abilities_;
  RankLoaded loaded_;
  std::string run_key_;
};

}  // namespace

Result<std::unique_ptr<Trainer>> make_site_trainer(std::shared_ptr<Site> site,
                                                   const LearnOptions& learn, std::string model) {
  FL_TRY(Layout layout, builtin_layout(model));
  if (model.starts_with("synthetic:")) {
    return Error(Errc::invalid_input,
                 fmt::format("model \"{}\" takes no steps that the ranks of a site could share: "
                             "leave out --ranks and --site",
                             model));
  }
  auto trainer =
      std::make_unique<SiteTrainer>(std::move(site), learn, std::move(model), std::move(layout));
  FL_CHECK(trainer->load());
  return std::unique_ptr<Trainer>(std::move(trainer));
}

}  // namespace fl::site
