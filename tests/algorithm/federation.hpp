// A federation in a few lines, on losses whose optimum is known: client k has
// f_k(w) = 1/2 sum_i a_k[i] (w[i] - b_k[i])^2. Nothing here knows engine, wire or codec.
#pragma once

#include "shared/algorithm/strategy.hpp"

#include <cstdint>
#include <functional>
#include <set>
#include <string_view>
#include <vector>

namespace fl::test {

using Vector = std::vector<float>;

struct Quadratic {
  Vector curvature;
  Vector centre;
  std::uint64_t examples = 1;
  std::uint64_t steps = 10;  // Local ones.
};

/// The weighted sum's minimum, by its closed form.
[[nodiscard]] Vector optimum(const std::vector<Quadratic>& clients, bool is_uniform = false);

class Federation {
 public:
  Federation(std::string_view strategy, std::vector<Quadratic> clients, TrainSettings settings);

  /// One round with these clients (all, when there are none named).
  void run_round(const std::vector<std::size_t>& who = {});
  [[nodiscard]] const Vector& model() const { return model_; }
  [[nodiscard]] const Vector& shared() const { return shared_; }
  /// The largest difference of the model from this point.
  [[nodiscard]] double distance(const Vector& point) const;

 private:
  [[nodiscard]] Vector train(const Quadratic& client, const Vector& correction) const;

  std::shared_ptr<const Strategy> strategy_;
  std::vector<Quadratic> clients_;
  TrainSettings settings_;
  std::uint32_t round_ = 0;
  std::set<std::size_t> known_;  // Who has taken part in a round.
  double population_ = 0;        // Their weight in the last one.
  Vector model_;
  Vector shared_;
  std::vector<Vector> kept_;   // Of each client.
  std::vector<Vector> state_;  // Of the server.
};

}  // namespace fl::test
