// What makes one federated method differ from another: how the server steps with the mean of a
// round's updates, and what a client adds to its local work. A method is one file here, and one row
// of the table in strategy.cpp. Both ends parse the run's spec, so both hold the same object.
//
// Everything works on flat fp32 spans of the model's parameters (P values, in layout order), a
// block of them at a time on the server; a model's statistics (layout.hpp) are not among them.
// Immutable after parsing; any thread.
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
  std::span<const float> shared;  // The shared vector's value in this version, or empty.
  std::span<const float>
      gradient;  // Of the local loss at the global model, where it was asked for.
};

/// A model that a client trains for itself, beside the global one.
struct OwnModel {
  double lambda = 0;         // lambda/2 ||v - w_global||^2 is added to its loss.
  std::uint32_t epochs = 1;  // Over the local data, in each round.
};

/// The client's half of a method that has one. A client may keep one vector of P values from round
/// to round (zeros before its first update); it goes forward only when the update is accepted.
class LocalRule {
 public:
  virtual ~LocalRule() = default;

  [[nodiscard]] virtual bool keeps_vector() const { return false; }
  /// How the kept vector is trained, where it is a model: the client does it before its other work,
  /// and begins, in place of zeros, with the first version that it trains from. Or nullptr.
  [[nodiscard]] virtual const OwnModel* own_model() const { return nullptr; }
  /// Whether finish() needs the gradient at the global model: a pass over the data more.
  [[nodiscard]] virtual bool wants_gradient() const { return false; }
  /// Writes what is added to every local gradient of this round. False: nothing is.
  [[nodiscard]] virtual bool correct([[maybe_unused]] std::span<const float> shared,
                                     [[maybe_unused]] std::span<const float> kept,
                                     [[maybe_unused]] std::span<float> correction) const {
    return false;
  }
  /// `update`: w_local - w_global, to be made what is sent. `shared_change`: P values to be filled,
  /// sent as the shared vector's change; empty without one. `kept`: the kept vector, to be made
  /// the next; empty without one.
  virtual void finish(const LocalRound& round, std::span<float> update,
                      std::span<float> shared_change, std::span<float> kept) const = 0;
  /// Whether the kept vector goes forward by what the server decodes: the server's half adds up the
  /// same, and what a codec lost may not come between the two.
  [[nodiscard]] virtual bool follows_sent() const { return false; }
  /// After coding, where follows_sent(): `sent`, what is decoded of a run of elements; `kept`: the
  /// same elements of the kept vector.
  virtual void follow([[maybe_unused]] std::span<const float> sent,
                      [[maybe_unused]] std::span<float> kept) const {}
};

/// What the server knows of a round as a whole.
struct RoundFacts {
  std::uint32_t round = 1;
  double lr = 0;  // Of the clients, in this round.
  /// Of the accepted updates' weight in that of all clients: those that were ever asked, and those
  /// that were there when the round opened. Above 0, and above 1 where others came meanwhile.
  double share = 1;
  /// The weight of all clients in the round before, in that of all in this one: by this a mean over
  /// all clients, with zeros for those that have not sent anything, shrinks when they become more.
  double regrouped = 1;
  double effective_steps =
      1;  // Weighted mean over the accepted updates; 1 where it has no meaning.
};

class Strategy {
 public:
  virtual ~Strategy() = default;

  /// The spec, as it was given.
  [[nodiscard]] const std::string& spec() const { return spec_; }
  /// Whether a client counts by its examples, or as much as any other ("weight=uniform").
  [[nodiscard]] bool is_uniform() const { return is_uniform_; }
  [[nodiscard]] std::uint64_t weight_of(std::uint64_t examples) const {
    return is_uniform_ ? 1 : examples;
  }

  /// Whether a tensor stays on each client, as FedPer (Arivazhagan 2019) and FedBN (Li 2021) have
  /// it: "personal=PATTERN|PATTERN", with * and ? as in file names.
  [[nodiscard]] bool is_personal(const std::string& tensor) const;
  [[nodiscard]] bool has_personal() const { return !personal_.empty(); }

  /// Whether it must know how far the local steps go, one after the other (effective_steps).
  [[nodiscard]] virtual bool counts_steps() const { return false; }
  /// Whether these settings of the local work fit the method (invalid_input: what would).
  [[nodiscard]] virtual Result<void> check(const TrainSettings& settings) const;
  /// The proximal term that the method asks for; 0: none.
  [[nodiscard]] virtual double proximal_mu() const { return 0; }
  /// Whether a 0 must arrive as a 0: a codec's dither would give it a sign.
  [[nodiscard]] virtual bool counts_signs() const { return false; }
  /// Whether clients go forward by what is decoded of their own updates: then the server must add
  /// just that, and nothing that is only right of all of them together (a sum of sketches).
  [[nodiscard]] bool adds_what_clients_see() const {
    return !shared_vector().empty() || (local() != nullptr && local()->follows_sent());
  }
  /// The client's half, or nullptr.
  [[nodiscard]] virtual const LocalRule* local() const { return nullptr; }

  /// The name of a vector of P values that travels with the model: every version has it (zeros in
  /// version 0), and every update its change. Empty: there is none.
  [[nodiscard]] virtual std::string_view shared_vector() const { return {}; }
  /// The part of the mean change by which the shared vector moves.
  [[nodiscard]] virtual double shared_step([[maybe_unused]] const RoundFacts& facts) const {
    return 1;
  }
  /// By what it is multiplied before.
  [[nodiscard]] virtual double shared_keep([[maybe_unused]] const RoundFacts& facts) const {
    return 1;
  }

  /// How many vectors of P values the server keeps beside the model, and what they begin with.
  [[nodiscard]] virtual unsigned state_vectors() const { return 0; }
  [[nodiscard]] virtual float initial_state([[maybe_unused]] unsigned vector) const { return 0; }
  /// `step`, the weighted mean of the updates, becomes what is added to the model; `state`: the
  /// same elements of the kept vectors, made the next ones. All spans have one length.
  virtual void step([[maybe_unused]] const RoundFacts& facts,
                    [[maybe_unused]] std::span<const std::span<float>> state,
                    [[maybe_unused]] std::span<float> step) const {}

 protected:
  /// Takes the options that all methods have.
  void take_common(SpecOptions& options);

 private:
  [[nodiscard]] Result<void> needs_sgd(const TrainSettings& settings) const;
  friend Result<std::shared_ptr<const Strategy>> parse_strategy(std::string_view spec);
  std::string spec_;
  bool is_uniform_ = false;
  std::vector<std::string> personal_;  // Patterns.
};

struct StrategyRow {
  std::string_view name;
  std::string_view usage;
  std::string_view about;  // With the paper.
  std::shared_ptr<Strategy> (*make)(SpecOptions& options);
};

/// All methods, in the order in which help shows them.
[[nodiscard]] std::span<const StrategyRow> strategy_rows();

/// invalid_input: an unknown name, an unknown option, or a value that is out of range.
[[nodiscard]] Result<std::shared_ptr<const Strategy>> parse_strategy(std::string_view spec);

/// The part of "SHARED.PARAMETER" behind the dot, where SHARED is some method's shared vector;
/// otherwise empty.
[[nodiscard]] std::string_view parameter_of_shared(std::string_view tensor);

/// The tensors of a run's vector: the model's but for personal ones, its parameters first and then
/// its statistics (is_statistic()), and behind them those of the shared vector, one for each
/// parameter, named SHARED.PARAMETER. Versions, updates and sums are such vectors; only a client
/// has the personal tensors, and joins them for training. The method is about the parameters;
/// statistics become the weighted mean of the clients'.
struct RunLayout {
  Layout all;
  std::uint64_t parameter_elements = 0;  // Of the model's parameters in it: P.
  std::uint64_t model_elements = 0;      // Of these and the statistics.
  std::uint64_t personal_elements = 0;   // Of the model's tensors that are not in it.
  /// The whole model, in its layout's order: stretches of one kind, each going on where the last of
  /// its kind ended.
  struct Stretch {
    bool is_personal = false;
    std::uint64_t elements = 0;
  };
  std::vector<Stretch> stretches;

  [[nodiscard]] bool has_shared() const { return all.elements() > model_elements; }
  /// The whole model from its two parts, and back. Sizes: model_elements + personal_elements,
  /// model_elements, personal_elements.
  void join(std::span<const float> part, std::span<const float> personal,
            std::span<float> whole) const;
  void split(std::span<const float> whole, std::span<float> part, std::span<float> personal) const;
};
/// invalid_input: a pattern that fits no tensor, no parameter that is not personal, or one that
/// stands behind a statistic.
[[nodiscard]] Result<RunLayout> run_layout(const Layout& model, const Strategy& strategy);

}  // namespace fl
