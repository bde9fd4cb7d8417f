// SPDX-License-Identifier: Apache-2.0
// Rank: what one rank of a site does, as its agent asks: load data and a model, enter a group, and
// train, evaluate or compute a gradient with it.
#pragma once

#include "client/learn/data/data.hpp"
#include "client/site/rank/kept_hook_state.hpp"
#include "client/site/rank/parallel.hpp"
#include "client/site/rank_link.hpp"
#include "client/site/site_messages.hpp"
#include "client/site/site_options.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace fl::site {

/// One thread; the calls block.
class Rank {
 public:
  /// `link` must outlive the object. Gives libtorch this rank's part of the machine's cores.
  Rank(RankLink& link, SitePlace place);

  /// Does what the agent asks until it asks this rank to end. Errors: unavailable (the agent is
  /// lost).
  [[nodiscard]] Result<void> run();

 private:
  [[nodiscard]] Result<nlohmann::json> answer(const nlohmann::json& request);
  [[nodiscard]] Result<void> choose_parallel(const nlohmann::json& request);
  [[nodiscard]] Result<nlohmann::json> load(LearnOptions learn);
  [[nodiscard]] Result<nlohmann::json> enter(const GroupOptions& group);
  /// Where Gloo listens without --site-interface; "": at the address that the host's name has.
  [[nodiscard]] std::string listening_address(const GroupOptions& group) const;
  [[nodiscard]] Result<nlohmann::json> train(const RankWork& work);
  [[nodiscard]] Result<nlohmann::json> evaluate(const RankWork& work);
  [[nodiscard]] Result<nlohmann::json> gradient(const RankWork& work);
  [[nodiscard]] Result<void> check_ready() const;
  /// Puts the hook into the state that it had before this round.
  [[nodiscard]] Result<void> begin_hook(const RankWork& work);

  RankLink& link_;
  const SitePlace place_;
  std::string data_key_;  // Names the options that the data were loaded with.
  LocalData data_;
  std::string model_;
  std::unique_ptr<Parallel> parallel_;  // Null before the first load.
  std::unique_ptr<Trainer> trainer_;    // For model_; null before the first model.
  std::optional<KeptHookState> kept_;   // Made with the first training.
  std::filesystem::path state_;         // The client's folder.
  std::string device_ = "auto";         // The value of --device.
  std::string setup_;                   // How the ranks share a step, for TrainReport::setup.
};

}  // namespace fl::site
