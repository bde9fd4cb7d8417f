// SPDX-License-Identifier: Apache-2.0
// LocalMethod: what a run's method does at a client beside the trainer's own work. It adds a
// proximal term or a correction (FedProx, SCAFFOLD, FedDyn), trains a model of the client's own
// (Ditto), joins the version with the client's personal tensors before training and takes them out
// of the update after it. shared/algorithm/strategy.hpp has the methods.
//
// Three kinds of vectors, all flat fp32:
//   version, update   layout().all: what travels
//   whole model       the trainer's layout: the version's model joined with the personal tensors
//   local values      what the client keeps: the rule's vector, then the personal tensors
//
// All of them are worked on in stretches, because each may be larger than the memory.
//
// On the worker thread, except where a function says otherwise.
#pragma once

#include "client/agent/parts_values.hpp"
#include "client/learn/trainer.hpp"
#include "client/state/client_state.hpp"
#include "client/state/stored_values.hpp"
#include "proto/wire.pb.h"
#include "shared/algorithm/strategy.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

namespace fl::client {

class LocalMethod {
 public:
  /// `trainer` and `state` must outlive it. Errors: invalid_input, if the client can't use the
  /// method, or the trainer can't do what the method asks of it.
  [[nodiscard]] static Result<LocalMethod> make(const std::string& strategy, Trainer& trainer,
                                                ClientState& state);

  [[nodiscard]] const Strategy& strategy() const { return *strategy_; }  // Any thread.
  [[nodiscard]] const RunLayout& layout() const { return layout_; }      // Any thread.
  [[nodiscard]] const LocalRule* rule() const { return strategy_->local(); }
  /// Whether this client keeps tensors to itself: personal ones, or a whole model. Any thread.
  [[nodiscard]] bool has_own_tensors() const {
    return own_model() != nullptr || layout_.personal_elements > 0;
  }
  /// The tensors that this client keeps to itself, if the method has such. `model` is the run's.
  /// Any thread.
  [[nodiscard]] std::optional<OwnTensors> own_tensors(const std::string& model) const;

  /// Writes version 0 of a run with this seed; vectors that travel with the model begin with zeros.
  [[nodiscard]] Result<void> write_initial(std::uint64_t seed, StoredValues& out) const;
  /// The local values before this round: from the client's state, or as they begin (the rule's
  /// vector with zeros, a model of the client's own with `version`, personal tensors with the
  /// initial model of `seed`). A copy in a new file, which train() changes. Errors: of the disk and
  /// the trainer.
  [[nodiscard]] Result<NewValues> next_local_values(const StoredValues& version,
                                                    std::uint64_t seed);
  /// The local values before this round, for reading; no values without own tensors.
  [[nodiscard]] Result<StoredValues> own_values(const StoredValues& version,
                                                std::uint64_t seed) const;

  /// Trains and says in `begin` what was done. `update` becomes what is sent, `kept` the next
  /// local values. Errors: those of the trainer and the disk; invalid_input for settings that the
  /// method or the trainer can't use.
  [[nodiscard]] Result<void> train(const TrainSettings& settings, const StoredValues& version,
                                   StoredValues& kept, StoredValues& update,
                                   wire::UploadBegin& begin, std::stop_token stop);
  struct Evaluations {
    EvalReport model;               // Measures the version, joined with the personal tensors.
    std::optional<EvalReport> own;  // Measures the client's own model.
  };
  /// Evaluates a version. `kept`: the local values; without own tensors they are not used.
  [[nodiscard]] Result<Evaluations> evaluate(const StoredValues& version, const StoredValues& kept,
                                             std::stop_token stop);

 private:
  LocalMethod(std::shared_ptr<const Strategy> strategy, RunLayout layout, Trainer& trainer,
              ClientState& state)
      : strategy_(std::move(strategy)),
        layout_(std::move(layout)),
        trainer_(&trainer),
        state_(&state) {}
  [[nodiscard]] const OwnModel* own_model() const {
    return rule() != nullptr ? rule()->own_model() : nullptr;
  }
  [[nodiscard]] std::size_t kept_vector_elements() const;
  [[nodiscard]] Result<void> check_settings(const TrainSettings& settings) const;
  [[nodiscard]] Result<void> write_first_local_values(const StoredValues& version,
                                                      std::uint64_t seed,
                                                      StoredValues& target) const;
  [[nodiscard]] PartsSource whole_model(const StoredValues& version,
                                        const StoredValues& kept) const;
  [[nodiscard]] PartsSource correction(const StoredValues& version, const StoredValues& kept) const;
  [[nodiscard]] Result<TrainReport> train_model(const TrainSettings& settings,
                                                const StoredValues& version, StoredValues& kept,
                                                StoredValues& update, std::stop_token stop);
  [[nodiscard]] Result<void> finish(const LocalRound& round, StoredValues& kept,
                                    StoredValues& update);
  [[nodiscard]] Result<void> train_own(TrainSettings settings, const ValueSource& global,
                                       StoredValues& kept, std::stop_token stop);

  std::shared_ptr<const Strategy> strategy_;
  RunLayout layout_;
  Trainer* trainer_;
  ClientState* state_;
};

}  // namespace fl::client
