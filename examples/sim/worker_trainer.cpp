// SPDX-License-Identifier: Apache-2.0
#include "examples/sim/worker_trainer.hpp"

#include <fmt/format.h>

#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace fl::sim {

namespace {

class WorkerTrainer final : public Trainer {
 public:
  WorkerTrainer(WorkerPool& pool, std::string model, std::optional<PlayedClient> client)
      : pool_(pool), model_(std::move(model)), client_(std::move(client)) {}

  const Layout& layout() const override { return pool_.hello().layout; }
  std::uint64_t train_examples() const override { return counts().train; }
  std::uint64_t holdout_examples() const override { return counts().holdout; }
  std::span<const MetricKind> metrics() const override { return pool_.hello().metrics; }
  Abilities abilities() const override { return pool_.hello().abilities; }
  void enter_run(const std::string& run_key) override { run_key_ = run_key; }

  Result<std::vector<float>> initial_weights(std::uint64_t seed) const override {
    return with_program({}, [&](Trainer& trainer) { return trainer.initial_weights(seed); });
  }
  Result<TrainReport> train(std::span<const float> global, const TrainSettings& settings,
                            std::span<const float> correction, std::span<float> update,
                            std::stop_token stop) override {
    return with_program(stop, [&](Trainer& trainer) {
      return trainer.train(global, settings, correction, update, stop);
    });
  }
  Result<void> gradient(std::span<const float> weights, const TrainSettings& settings,
                        std::span<float> gradient, std::stop_token stop) override {
    return with_program(stop, [&](Trainer& trainer) {
      return trainer.gradient(weights, settings, gradient, stop);
    });
  }
  Result<EvalReport> evaluate(std::span<const float> weights, std::stop_token stop) override {
    if (holdout_examples() == 0) return EvalReport{};
    return with_program(stop, [&](Trainer& trainer) { return trainer.evaluate(weights, stop); });
  }

 private:
  [[nodiscard]] const ExampleCounts& counts() const {
    return client_ ? client_->examples : pool_.hello().examples;
  }

  template <class Function>
  std::invoke_result_t<Function&, Trainer&> with_program(const std::stop_token& stop,
                                                         Function work) const {
    std::optional<std::invoke_result_t<Function&, Trainer&>> result;
    pool_.run([&](const std::shared_ptr<TrainerProgram>& program) {
      if (stop.stop_requested()) {
        result.emplace(Error(Errc::cancelled, "stopped"));
        return;
      }
      const auto trainer = make_process_trainer(program, model_, client_).value();
      trainer->enter_run(run_key_);
      result.emplace(work(*trainer));
    });
    return std::move(*result);
  }

  WorkerPool& pool_;
  std::string model_;
  std::optional<PlayedClient> client_;
  std::string run_key_;
};

}  // namespace

Result<std::unique_ptr<Trainer>> make_worker_trainer(WorkerPool& pool, std::string model,
                                                     std::optional<PlayedClient> client) {
  if (client) {
    Result<ExampleCounts> counts = ExampleCounts{};
    pool.run([&](const std::shared_ptr<TrainerProgram>& program) {
      counts = ask_for_examples(*program, *client, {});
    });
    FL_TRY(client->examples, counts);
    if (client->examples.train == 0)
      return Error(Errc::invalid_input,
                   fmt::format("client {} has no training examples", client->number));
  }
  return std::unique_ptr<Trainer>(
      std::make_unique<WorkerTrainer>(pool, std::move(model), std::move(client)));
}

}  // namespace fl::sim
