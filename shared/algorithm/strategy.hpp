// SPDX-License-Identifier: Apache-2.0
// A federated method: how the server makes a step from the mean of a round's updates, and what a
// client adds to its local work. Each method has a row of the table in strategy.cpp, and its code
// is a file in strategies/. Both ends parse the run's spec, so both have the same object.
//
// All spans are flat fp32 runs of the model's parameters (P values, in layout order). The server
// works on a block of them at a time. A model's statistics (layout.hpp) are not among them.
// A strategy never changes after parsing; any thread may use it.
#pragma once

#include "shared/algorithm/local_work.hpp"
#include "shared/base/error.hpp"
#include "shared/base/spec/spec_options.hpp"
#include "shared/params/layout.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// What a client knows after its local training of a round.
struct LocalRound {
  const TrainSettings& settings;
  std::uint64_t steps = 0;        // Mini-batch steps done.
  std::span<const float> shared;  // The shared vector in this version, or empty.
  std::span<const float>
      gradient;  // The gradient at the global model, if wants_gradient(); or empty.
};

/// A model that a client trains for itself, beside the global one.
struct OwnModel {
  double lambda = 0;         // The loss gets an additional lambda/2 ||v - w_global||^2.
  std::uint32_t epochs = 1;  // Passes over the local data in each round.
};

/// The client's half of a method, if it has one. A client may keep one vector of P values from
/// round to round, zeros at first. A changed kept vector counts only if the server accepts the
/// update.
class LocalRule {
 public:
  virtual ~LocalRule() = default;

  [[nodiscard]] virtual bool keeps_vector() const { return false; }
  /// How the client trains the kept vector, if that is a model; else nullptr. It does so before its
  /// other work. Such a vector starts as the first version that the client gets, not as zeros.
  [[nodiscard]] virtual const OwnModel* own_model() const { return nullptr; }
  /// Whether finish() needs the gradient at the global model. It costs one more pass over the data.
  [[nodiscard]] virtual bool wants_gradient() const { return false; }
  /// Writes what is added to every local gradient of this round. Returns false if nothing is added.
  [[nodiscard]] virtual bool correct([[maybe_unused]] std::span<const float> shared,
                                     [[maybe_unused]] std::span<const float> kept,
                                     [[maybe_unused]] std::span<float> correction) const {
    return false;
  }
  /// Called after training. `update` comes in as w_local - w_global and leaves as what is sent.
  /// `shared_change` gets the change of the shared vector, P values; it is empty if the method has
  /// no shared vector. `kept` becomes the next kept vector; it is empty if the method keeps none.
  virtual void finish(const LocalRound& round, std::span<float> update,
                      std::span<float> shared_change, std::span<float> kept) const = 0;
  /// Whether the kept vector changes by the update as the server decodes it. The server's half sums
  /// the same values, so a lossy codec cannot make the two differ.
  [[nodiscard]] virtual bool follows_sent() const { return false; }
  /// Called after coding, if follows_sent(). `sent` is a run of the update as it will be decoded,
  /// `kept` the same elements of the kept vector.
  virtual void follow([[maybe_unused]] std::span<const float> sent,
                      [[maybe_unused]] std::span<float> kept) const {}
};

/// What the server knows about a whole round.
struct RoundFacts {
  std::uint32_t round = 1;
  double lr = 0;  // The clients' learning rate in this round.
  /// The weight of the accepted updates, divided by the weight of all clients. All clients are
  /// those that were ever asked, and those that were connected when the round opened. The share is
  /// above 0; it is above 1 if clients came while the round was open.
  double share = 1;
  /// The weight of all clients in the round before, divided by their weight in this round. A mean
  /// over all clients has zeros for those that have sent nothing, so it shrinks by this factor when
  /// more clients join.
  double regrouped = 1;
  double effective_steps = 1;  // Weighted mean over the accepted updates; 1 if it has no meaning.
};

/// The server's half of a method, and facts about the method. A method overrides what differs from
/// FedAvg.
class Strategy {
 public:
  virtual ~Strategy() = default;

  /// The spec as the user gave it.
  [[nodiscard]] const std::string& spec() const { return spec_; }
  /// The weight of a client: its examples or, with "weight=uniform", 1.
  [[nodiscard]] std::uint64_t weight_of(std::uint64_t examples) const {
    return is_uniform_ ? 1 : examples;
  }

  /// Whether a tensor stays on each client and is never sent ("personal=PATTERN|PATTERN", with *
  /// and ? as in file names). FedPer (Arivazhagan 2019) and FedBN (Li 2021) are such cases.
  [[nodiscard]] bool is_personal(const std::string& tensor) const;
  [[nodiscard]] bool has_personal() const { return !personal_.empty(); }

  /// Whether the method needs effective_steps() of the local work.
  [[nodiscard]] virtual bool counts_steps() const { return false; }
  /// Returns invalid_input, with settings that would fit, if the method cannot use these.
  [[nodiscard]] virtual Result<void> check(const TrainSettings& settings) const;
  /// The proximal mu that the method asks for; 0 means none.
  [[nodiscard]] virtual double proximal_mu() const { return 0; }
  /// Whether a 0 must arrive as a 0. Then a codec must not dither, which would give it a sign.
  [[nodiscard]] virtual bool counts_signs() const { return false; }
  /// Whether clients rely on the decoded values of their own updates. Then the server must add
  /// exactly these. A codec that is only right for the sum of all updates (a sum of sketches)
  /// cannot be used.
  [[nodiscard]] bool adds_what_clients_see() const {
    return !shared_vector().empty() || (local() != nullptr && local()->follows_sent());
  }
  /// The client's half, or nullptr.
  [[nodiscard]] virtual const LocalRule* local() const { return nullptr; }

  /// The name of a vector of P values that travels with the model, or empty if there is none. Every
  /// version has the vector (zeros in version 0), and every update has its change.
  [[nodiscard]] virtual std::string_view shared_vector() const { return {}; }
  /// The new shared vector is shared_keep() times the old one, plus shared_step() times the mean
  /// change.
  [[nodiscard]] virtual double shared_step([[maybe_unused]] const RoundFacts& facts) const {
    return 1;
  }
  [[nodiscard]] virtual double shared_keep([[maybe_unused]] const RoundFacts& facts) const {
    return 1;
  }

  /// How many vectors of P values the server keeps beside the model, and the value that all
  /// elements of a vector start with.
  [[nodiscard]] virtual unsigned state_vectors() const { return 0; }
  [[nodiscard]] virtual float initial_state([[maybe_unused]] unsigned vector) const { return 0; }
  /// `step` comes in as the weighted mean of the updates and leaves as what is added to the model.
  /// `state` has the same elements of the server's vectors, and becomes their next values. All
  /// spans have the same length.
  virtual void step([[maybe_unused]] const RoundFacts& facts,
                    [[maybe_unused]] std::span<const std::span<float>> state,
                    [[maybe_unused]] std::span<float> step) const {}

 protected:
  /// Reads the options that all methods have.
  void take_common(SpecOptions& options);

 private:
  [[nodiscard]] Result<void> needs_sgd(const TrainSettings& settings) const;
  friend Result<std::shared_ptr<const Strategy>> parse_strategy(std::string_view spec);
  std::string spec_;
  bool is_uniform_ = false;
  std::vector<std::string> personal_;  // The patterns of personal tensors.
};

struct StrategyRow {
  std::string_view name;
  std::string_view usage;
  std::string_view about;  // One line for help, with the paper.
  std::shared_ptr<Strategy> (*make)(SpecOptions& options);
};

/// All methods, in the order in which the help lists them.
[[nodiscard]] std::span<const StrategyRow> strategy_rows();

/// Returns invalid_input for an unknown name, an unknown option, or a value out of range.
[[nodiscard]] Result<std::shared_ptr<const Strategy>> parse_strategy(std::string_view spec);

/// The PARAMETER of a tensor's name "SHARED.PARAMETER", if SHARED is the shared vector of some
/// method. Returns empty for any other name.
[[nodiscard]] std::string_view parameter_of_shared(std::string_view tensor);

/// The tensors of a run's vector, in order: the model's parameters, its statistics
/// (is_statistic()), and one tensor of the shared vector for each parameter, named
/// SHARED.PARAMETER. Personal tensors are left out. Versions, updates and sums are such vectors.
/// Only a client has the personal tensors, and it joins them for training. The method works on the
/// parameters; statistics become the weighted mean of the clients'.
struct RunLayout {
  Layout all;
  std::uint64_t parameter_elements = 0;  // P: the number of the model's parameters in this vector.
  std::uint64_t model_elements = 0;      // Parameters and statistics in this vector.
  std::uint64_t personal_elements = 0;   // The model's elements that are not in this vector.
  /// The whole model in the order of its layout. Stretches are personal or not; each continues its
  /// kind where the last one of that kind ended.
  struct Stretch {
    bool is_personal = false;
    std::uint64_t elements = 0;
  };
  std::vector<Stretch> stretches;

  [[nodiscard]] bool has_shared() const { return all.elements() > model_elements; }
  /// join() makes the whole model from its two parts, split() the reverse. `part` has
  /// model_elements values, `personal` personal_elements, and `whole` both.
  void join(std::span<const float> part, std::span<const float> personal,
            std::span<float> whole) const;
  void split(std::span<const float> whole, std::span<float> part, std::span<float> personal) const;
};
/// Returns invalid_input if the patterns match no tensor, if every parameter is personal, or if a
/// parameter comes after a statistic.
[[nodiscard]] Result<RunLayout> run_layout(const Layout& model, const Strategy& strategy);

}  // namespace fl
