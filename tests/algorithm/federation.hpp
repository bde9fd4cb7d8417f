// SPDX-License-Identifier: Apache-2.0
// A small federation with losses whose optimum is known: client k has the loss
// f_k(w) = 1/2 sum_i a_k[i] (w[i] - b_k[i])^2. It has no engine, wire or codec.
#pragma once

#include "shared/algorithm/strategy.hpp"

#include <cstdint>
#include <functional>
#include <set>
#include <string_view>
#include <vector>

namespace fl::test {

using Vector = std::vector<float>;

/// A client and its loss.
struct Quadratic {
  Vector curvature;  // a_k
  Vector centre;     // b_k
  std::uint64_t examples = 1;
  std::uint64_t steps = 10;  // Local steps in a round.
};

/// The minimum of the weighted sum of the losses, in closed form.
[[nodiscard]] Vector optimum(const std::vector<Quadratic>& clients, bool is_uniform = false);

class Federation {
 public:
  Federation(std::string_view strategy, std::vector<Quadratic> clients, TrainSettings settings);

  /// Runs a round with these clients, or with all if `who` is empty.
  void run_round(const std::vector<std::size_t>& who = {});
  [[nodiscard]] const Vector& model() const { return model_; }
  [[nodiscard]] const Vector& shared() const { return shared_; }
  /// The largest difference of an element of the model from this point.
  [[nodiscard]] double distance(const Vector& point) const;

 private:
  [[nodiscard]] Vector train(const Quadratic& client, const Vector& correction) const;

  std::shared_ptr<const Strategy> strategy_;
  std::vector<Quadratic> clients_;
  TrainSettings settings_;
  std::uint32_t round_ = 0;
  std::set<std::size_t> known_;  // The clients that have taken part so far.
  double population_ = 0;        // Their weight after the last round.
  Vector model_;
  Vector shared_;
  std::vector<Vector> kept_;   // The kept vector of each client.
  std::vector<Vector> state_;  // The server's vectors.
};

}  // namespace fl::test
