// What the client asks of a model: train on the local data, evaluate, make initial weights. One
// Trainer holds one model and one data set; one thread at a time (the agent's training thread).
// Weights and updates are flat fp32 vectors in the order of layout(). No libtorch in this header.
#pragma once

#include "kernels/codec_device.hpp"
#include "shared/algorithm/local_work.hpp"
#include "shared/base/error.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace fl {

struct LocalData;

struct TrainReport {
  std::uint64_t examples = 0;  // Local training examples: the weight of the update in FedAvg.
  std::uint64_t steps = 0;     // Mini-batch steps done.
  double loss = 0.0;           // Mean training loss over all examples seen.
  double seconds = 0.0;
};

struct EvalReport {
  std::uint64_t examples = 0;
  double loss = 0.0;      // Mean over the examples.
  double accuracy = 0.0;  // Fraction right, 0..1.
};

class Trainer {
 public:
  virtual ~Trainer() = default;

  [[nodiscard]] virtual const Layout& layout() const = 0;
  /// Of the training part and of the held-out part.
  [[nodiscard]] virtual std::uint64_t train_examples() const = 0;
  [[nodiscard]] virtual std::uint64_t holdout_examples() const = 0;
  /// The same for the same (model, seed) on every machine, bit for bit.
  [[nodiscard]] virtual std::vector<float> initial_weights(std::uint64_t seed) const = 0;

  /// Starts from `global`, trains, and writes w_local - w_global to `update`; both have
  /// layout().elements() values. `correction`, as many values or none, is added to the gradient of
  /// every step; of statistics (shared/params/layout.hpp), which have none, it is not looked at. A
  /// stop asked for through `stop` ends it with Errc::cancelled. A loss that is not finite is
  /// Errc::invalid_input, with the step it happened at.
  [[nodiscard]] virtual Result<TrainReport> train(std::span<const float> global,
                                                  const TrainSettings& settings,
                                                  std::span<const float> correction,
                                                  std::span<float> update,
                                                  std::stop_token stop) = 0;
  /// Writes the gradient of the mean loss over the training examples, plus weight_decay * weights;
  /// zeros for statistics.
  [[nodiscard]] virtual Result<void> gradient(std::span<const float> weights,
                                              const TrainSettings& settings,
                                              std::span<float> gradient, std::stop_token stop) = 0;
  /// On the held-out part (or the whole set for an evaluate-only client). No held-out data: 0
  /// examples.
  [[nodiscard]] virtual Result<EvalReport> evaluate(std::span<const float> weights,
                                                    std::stop_token stop) = 0;

  /// Whether steps are taken at the same time on the same weights, so that their number does not
  /// say how far they go.
  [[nodiscard]] virtual bool takes_steps_together() const { return false; }

  /// What codes updates on the device that they are made on; null where that is the CPU. Errors: of
  /// a device that has no room for it.
  [[nodiscard]] virtual Result<std::unique_ptr<CodecDevice>> make_codec_device() {
    return std::unique_ptr<CodecDevice>();
  }
  /// The update in that device's memory, if the last call was a train(); null on the CPU. Stays as
  /// it is until the next call.
  [[nodiscard]] virtual const float* update_on_device() { return nullptr; }
};

/// What the command line says of the model and the data.
struct LearnOptions {
  std::string model;  // As builtin_layout() knows it; the server names it.
  std::string data;   // "fashion-mnist", "fashion-mnist:test", "idx:DIR[:test]"; "" for synthetic.
  std::string partition = "iid";  // "iid", "dirichlet:ALPHA", "labels:K".
  std::uint32_t shard = 0;        // 0-based here; the command line's 3/10 is shard 2 of 10.
  std::uint32_t shards = 1;
  std::uint64_t partition_seed = 0;
  double holdout = 0.1;            // Part of the shard kept for federated evaluation, 0 for none.
  bool evaluate_only = false;      // All data is held out, none trains.
  std::string device = "auto";     // "cpu", "cuda", "auto".
  std::string precision = "fp32";  // "bf16", "fp16": of the training's passes; weights stay fp32.
  int threads = 0;                 // 0: as many as the machine has.
  int hogwild = 1;                 // So many threads train the same weights without locks.
  std::uint64_t client_seed =
      0;  // Distinguishes clients: mixed into synthetic updates and shuffles.
};

/// A model the client does not know, a data set that can't be read, a device that isn't there: an
/// error that names it and says what there is. client/learn/models.cpp holds the table.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_trainer(const LearnOptions& options);
/// The same with data that is read already; options.data, shard and so on do not matter.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_trainer(const LearnOptions& options,
                                                            LocalData data);

}  // namespace fl
