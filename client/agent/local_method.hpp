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
// On the worker thread, except where a function says otherwise.
#pragma once

#include "client/learn/trainer.hpp"
#include "client/state/client_state.hpp"
#include "proto/wire.pb.h"
#include "shared/algorithm/strategy.hpp"
#include "shared/base/error.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace fl::client {

class LocalMethod {
 public:
  /// `trainer` and `state` must outlive it. Errors: invalid_input, if the client can't use the
  /// method, or the trainer can't do what the method asks of it.
  [[nodiscard]] static Result<LocalMethod> make(const std::string& strategy, Trainer& trainer,
                                                const ClientState& state);

  [[nodiscard]] const Strategy& strategy() const { return *strategy_; }  // Any thread.
  [[nodiscard]] const RunLayout& layout() const { return layout_; }      // Any thread.
  [[nodiscard]] const LocalRule* rule() const { return strategy_->local(); }
  /// Whether this client keeps tensors to itself: personal ones, or a whole model. Any thread.
  [[nodiscard]] bool has_own_tensors() const {
    return own_model() != nullptr || layout_.personal_elements > 0;
  }
  /// The tensors that this client keeps to itself, if the method has such. `model` is the run's.
  /// Any thread.
  [[nodiscard]] std::optional<ClientState::OwnTensors> own_tensors(const std::string& model) const;

  /// Version 0 of a run with this seed; vectors that travel with the model begin with zeros.
  [[nodiscard]] Result<std::vector<float>> initial_values(std::uint64_t seed) const;
  /// The local values, from the client's state or as they begin: the rule's vector with zeros, a
  /// model of the client's own with `version`, personal tensors with the initial model of `seed`.
  [[nodiscard]] Result<std::vector<float>> local_values(std::span<const float> version,
                                                        std::uint64_t seed) const;

  /// Trains and says in `begin` what was done. `update` becomes what is sent, `kept` the next
  /// local values. Errors: those of the trainer; invalid_input for settings that the method or the
  /// trainer can't use.
  [[nodiscard]] Result<void> train(const TrainSettings& settings, std::span<const float> version,
                                   std::span<float> kept, std::span<float> update,
                                   wire::UploadBegin& begin, std::stop_token stop);
  /// Evaluates a version. `kept`: the local values; may be empty without own tensors.
  struct Evaluations {
    EvalReport model;               // Of the version, joined with the personal tensors.
    std::optional<EvalReport> own;  // Of the model of the client's own.
  };
  [[nodiscard]] Result<Evaluations> evaluate(std::span<const float> version,
                                             std::span<const float> kept, std::stop_token stop);

 private:
  LocalMethod(std::shared_ptr<const Strategy> strategy, RunLayout layout, Trainer& trainer,
              const ClientState& state)
      : strategy_(std::move(strategy)),
        layout_(std::move(layout)),
        trainer_(&trainer),
        state_(&state) {}
  [[nodiscard]] const OwnModel* own_model() const {
    return rule() != nullptr ? rule()->own_model() : nullptr;
  }
  [[nodiscard]] std::size_t kept_vector_elements() const;
  [[nodiscard]] Result<void> check_settings(const TrainSettings& settings) const;
  [[nodiscard]] std::span<const float> whole_model(std::span<const float> version,
                                                   std::span<const float> kept,
                                                   std::vector<float>& room) const;
  [[nodiscard]] std::vector<float> correction(std::span<const float> version,
                                              std::span<const float> vector) const;
  [[nodiscard]] Result<std::vector<float>> start_gradient(const TrainSettings& settings,
                                                          std::span<const float> model,
                                                          std::stop_token stop);
  [[nodiscard]] Result<void> train_own(TrainSettings settings, std::span<const float> global,
                                       std::span<float> own, std::stop_token stop);

  std::shared_ptr<const Strategy> strategy_;
  RunLayout layout_;
  Trainer* trainer_;
  const ClientState* state_;
};

}  // namespace fl::client
