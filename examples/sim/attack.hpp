// SPDX-License-Identifier: Apache-2.0
// The attacks of malicious virtual clients. They show how well a rule of --aggregate stands them:
//
//   sign-flip[:S]    Sends the opposite of its own update, S times as large (by default 1).
//   ipm[:S]          Sends the opposite of the honest clients' mean update, S times as large (0.5):
//                    inner product manipulation, Xie 2020, "Fall of empires".
//   alie[:Z]         Sends the honest mean less Z (1.5) standard deviations in each coordinate: "A
//                    little is enough", Baruch 2019. It hides among the honest updates.
//   label-flip       Trains with the label classes - 1 - y in place of y.
//   backdoor[:S]     Trains with a white square in a corner of every second image and the label 0
//                    with it, and sends S times its update (1): Bagdasaryan 2020, "How to backdoor
//                    federated learning".
//
// The attackers of ipm and alie know all honest updates of their round: each trains on all shards
// itself, with the honest clients' seeds. That is the worst case, and takes as long as the round.
#pragma once

#include "client/learn/data/data.hpp"
#include "client/learn/trainer.hpp"
#include "shared/base/error.hpp"

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace fl::sim {

struct Attack {
  enum class Kind { none, sign_flip, ipm, alie, label_flip, backdoor };
  Kind kind = Kind::none;
  double strength = 1;  // The S or Z of the attack.

  /// Whether the attacker needs the honest updates.
  [[nodiscard]] bool is_omniscient() const { return kind == Kind::ipm || kind == Kind::alie; }
};

struct AttackRow {
  std::string_view name;
  std::string_view usage;  // For help and errors.
  Attack attack;           // With the strength that it has without a number.
  bool has_strength = false;
};
/// All attacks, in the order in which help shows them; "none" is the first.
[[nodiscard]] std::span<const AttackRow> attack_rows();

/// Returns invalid_input, with all attacks, if `spec` is no attack.
[[nodiscard]] Result<Attack> parse_attack(std::string_view spec);

/// Changes the data that a malicious client trains on (label-flip, backdoor).
/// Errors: invalid_input, for a backdoor in data without pixels, or flipped labels without labels.
[[nodiscard]] Result<void> poison(const Attack& attack, DataSet& train);

/// Mean and variance of the honest updates, one after another (Welford).
class HonestUpdates {
 public:
  void add(std::span<const float> update);
  /// The update that an omniscient attacker sends.
  void write(const Attack& attack, std::span<float> out) const;

 private:
  std::size_t count_ = 0;
  std::vector<double> mean_;
  std::vector<double> squares_;  // The sum of squared differences to the mean.
};

}  // namespace fl::sim
