// SPDX-License-Identifier: Apache-2.0
// The messages between the agent of a site and its ranks, as JSON (docs/design/sites.md). Both come
// from the same build, which the hello checks. Pure functions; any thread.
#pragma once

#include "client/learn/learn_options.hpp"
#include "client/learn/trace.hpp"
#include "client/learn/trainer.hpp"
#include "client/site/measured_choices.hpp"
#include "client/site/site_member.hpp"
#include "shared/base/error.hpp"
#include "shared/base/json.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fl::site {

/// By which flags the ranks of a site share a step, as they stay while the agent lives.
struct ParallelSettings {
  std::string hook = "allreduce";
  std::string topology = "backend";
  std::string unused_parameters = "refuse";
  std::string bucket_mb = {};
  int zero = 0;  // The stage of ZeRO, 0 to 3.
  int tp = 1;    // Ranks that have layers together.
  bool sequence_parallel = false;
  int cp = 1;  // Ranks that have texts together.
  std::string context_parallel = "ring";
  int ep = 1;  // Ranks of which each has some of the experts.
  std::string expert_parallel = "direct";
  int pp = 1;  // Ranks that have the stages of a pipeline.
  std::string pipeline = "1f1b";
};

/// How the ranks of a site train together.
struct GroupOptions {
  int generation = 0;  // Counts the groups of a site from 1.
  int rank = 0;        // The number in this group, from 0.
  int size = 1;
  std::string backend = "gloo";
  std::string hook = "allreduce";    // How gradients are reduced (client/site/rank/hooks).
  std::string topology = "backend";  // How ranks sum, or "auto".
  std::string bucket_mb = {};        // Gradients are reduced in pieces of this size, or "auto".
  std::string unused_parameters = "refuse";
  double timeout_s = 60;           // The time limit of a collective.
  bool check_calls = false;        // Before each, ranks compare which one they make.
  std::string agent_address = {};  // Where ranks of other machines reach the agent; "": none does.
  MeasuredChoices measured = {};   // The choices that the agent keeps.
};

/// The answer of a rank that has loaded a model and data.
struct RankLoaded {
  std::string layout;  // The digest.
  std::uint64_t train = 0;
  std::uint64_t holdout = 0;
  std::vector<ColumnSummary> summaries = {};
};

/// Reads the choices of a group's ranks, which are in the answer of each of them. Errors: protocol.
[[nodiscard]] Result<MeasuredChoices> parse_measured(const nlohmann::json& answer);

/// Files that the agent and the ranks of its machine map, each a flat fp32 vector. "" if there is
/// no such file, or the rank is on another machine.
struct RankFiles {
  std::string weights = {};
  std::string correction = {};
  std::string result = {};
};

/// A piece of work for the group.
struct RankWork {
  std::string run = {};  // The run's key.
  TrainSettings settings = {};
  bool has_correction = false;
  bool has_result = false;
  RankFiles files = {};
  std::vector<int> away = {};  // The group's ranks that are on other machines than the agent.
  bool has_trace = false;      // Whether the answer is to have spans.
};

/// The hello of a rank, which says who it is.
[[nodiscard]] nlohmann::json rank_hello(const SiteMember& member, int size);
/// Errors: conflict for a rank of another build or of another site.
[[nodiscard]] Result<SiteMember> parse_rank_hello(const nlohmann::json& message, int size);
/// What the agent says to a rank that it does not let in, and why.
[[nodiscard]] nlohmann::json rank_refusal(const std::string& reason);

[[nodiscard]] nlohmann::json rank_error(const Error& error);
[[nodiscard]] Error parse_rank_error(const nlohmann::json& message);

[[nodiscard]] nlohmann::json to_json_of(const LearnOptions& value);
[[nodiscard]] nlohmann::json to_json_of(const ParallelSettings& value);
[[nodiscard]] nlohmann::json to_json_of(const GroupOptions& value);
[[nodiscard]] nlohmann::json to_json_of(const RankLoaded& value);
[[nodiscard]] nlohmann::json to_json_of(const RankWork& value);
[[nodiscard]] nlohmann::json to_json_of(const TrainReport& value);
[[nodiscard]] nlohmann::json to_json_of(const EvalReport& value);
[[nodiscard]] nlohmann::json to_json_of(const std::vector<TraceSpan>& spans);
/// Reads at most limits::trace_spans_max spans. Errors: protocol.
[[nodiscard]] Result<std::vector<TraceSpan>> parse_spans(const nlohmann::json& spans);
/// Reads what to_json_of() wrote. Errors: protocol, with the member that is wrong.
template <class Value>
[[nodiscard]] Result<Value> parse_as(const nlohmann::json& message);

/// Writes a counter as the store keeps it, a text in base64url.
[[nodiscard]] std::string counter_text(std::int64_t value);
/// Reads such a counter; none if the text is no counter.
[[nodiscard]] std::optional<std::int64_t> counter_of(const std::string& text);

/// The name of this machine, and an identifier of its running system: they tell machines apart.
[[nodiscard]] std::string host_name();
[[nodiscard]] std::string boot_id();

}  // namespace fl::site
