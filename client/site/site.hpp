// SPDX-License-Identifier: Apache-2.0
// Site: the ranks of a client that is a whole site, seen from its agent, which is no rank itself.
// It starts the ranks of this machine, waits for those of others, makes a group of them and gives
// it work. When a rank is lost, a new group is made, with or without that rank, and the work begins
// again.
#pragma once

#include "client/learn/learn_options.hpp"
#include "client/learn/process/tensor_folder.hpp"
#include "client/site/doctor.hpp"
#include "client/site/grid.hpp"
#include "client/site/hub.hpp"
#include "client/site/local_ranks.hpp"
#include "client/site/measured_choices.hpp"
#include "client/site/shared_values.hpp"
#include "client/site/site_messages.hpp"
#include "client/site/site_options.hpp"
#include "shared/params/layout.hpp"

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <vector>

namespace fl::site {

/// One thread at a time; the calls block.
class Site {
 public:
  /// Starts the ranks, or waits for those that a launcher starts, and has them load the data.
  /// `learn`: model, data and device of each rank; its data are those of the whole site. `state`:
  /// the client's folder. `place`: of this process, if a launcher has started it. Errors: those of
  /// the data; deadline if ranks are missing after options.timeout_s, with their numbers;
  /// cancelled.
  [[nodiscard]] static Result<std::shared_ptr<Site>> start(const SiteOptions& options,
                                                           const std::optional<SitePlace>& place,
                                                           const LearnOptions& learn,
                                                           const std::filesystem::path& state,
                                                           const std::stop_token& stop);
  ~Site();
  Site(const Site&) = delete;
  Site& operator=(const Site&) = delete;

  /// Has all ranks make their trainer for this model. Errors: those of the ranks; conflict if they
  /// have not all the same data.
  [[nodiscard]] Result<RankLoaded> load(const std::string& model, const Layout& layout,
                                        const std::stop_token& stop);
  enum class Kind { train, evaluate, gradient };
  /// Has the group do this piece of work with the model that was loaded last, and returns the
  /// answer of its first rank. `weights`, `correction` (may be empty) and `result` (may be empty)
  /// have the layout's number of elements. Errors: cancelled; invalid_input: what a rank says of
  /// the work, that ranks were lost limits::site_attempts_max times, or that too few are there.
  [[nodiscard]] Result<nlohmann::json> work(Kind kind, RankWork work,
                                            std::span<const float> weights,
                                            std::span<const float> correction,
                                            std::span<float> result, const std::stop_token& stop);
  /// Asks the ranks about their machines. The answers are in the order of the group that measure()
  /// makes. This makes no group, because a fault of a machine may prevent one.
  [[nodiscard]] Result<std::vector<RankFacts>> ask_facts(const std::stop_token& stop);
  /// Has them measure their links.
  [[nodiscard]] Result<SiteMeasurement> measure(const std::stop_token& stop);
  /// From now on what the ranks do in each training goes to this file.
  void trace_into(std::shared_ptr<TraceFile> trace) { trace_ = std::move(trace); }
  /// Returns sentences about the ranks that were lost since the last call.
  [[nodiscard]] std::vector<std::string> take_losses() { return std::exchange(losses_, {}); }

 private:
  Site(SiteOptions options, Grid grid, LearnOptions learn, TensorFolder folder,
       KeptChoices measured, int size);
  [[nodiscard]] Result<std::vector<SiteMember>> gather(const std::stop_token& stop);
  [[nodiscard]] Result<RankLoaded> load_at(const std::vector<SiteMember>& members,
                                           const std::stop_token& stop);
  [[nodiscard]] Result<void> make_group(const std::stop_token& stop);
  [[nodiscard]] Result<nlohmann::json> try_work(Kind kind, const RankWork& work,
                                                const std::stop_token& stop);
  [[nodiscard]] Result<std::vector<nlohmann::json>> ask_all(
      const std::vector<SiteHub::Request>& requests, const std::stop_token& stop);
  [[nodiscard]] Result<void> make_files(bool has_correction);
  [[nodiscard]] Result<void> write_trace(const std::vector<nlohmann::json>& answers);

  const SiteOptions options_;
  const Grid grid_;
  LearnOptions learn_;  // With the model that was loaded last.
  TensorFolder folder_;
  KeptChoices measured_;
  const int size_;
  std::unique_ptr<LocalRanks> local_;  // Outlives the hub, which calls it.
  std::unique_ptr<SiteHub> hub_;
  std::size_t elements_ = 0;
  SharedValues weights_;
  SharedValues correction_;
  SharedValues result_;
  std::vector<SiteMember> group_;  // In the order of its ranks; empty without a group.
  std::string group_model_;
  int generation_ = 0;
  std::vector<std::string> losses_;
  std::shared_ptr<TraceFile> trace_;  // Null if no trace is wanted.
  std::set<int> traced_;              // Ranks that have a name in the trace.
};

/// A Trainer for `model` on the site.
[[nodiscard]] Result<std::unique_ptr<Trainer>> make_site_trainer(std::shared_ptr<Site> site,
                                                                 const LearnOptions& learn,
                                                                 std::string model);

}  // namespace fl::site
