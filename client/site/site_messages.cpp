// SPDX-License-Identifier: Apache-2.0
#include "client/site/site_messages.hpp"

#include "client/learn/process/json_line.hpp"
#include "client/site/value_as.hpp"
#include "shared/algorithm/train_fields.hpp"
#include "shared/base/io/text_of_bytes.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/spec/spec_text.hpp"
#include "shared/base/version.hpp"

#include <fmt/format.h>

#include <unistd.h>
#include <array>
#include <cmath>
#include <fstream>

/// An empty optional is null in JSON.
template <>
struct nlohmann::adl_serializer<std::optional<double>> {
  static void to_json(json& out, const std::optional<double>& value) {
    out = value ? json(*value) : json();
  }
  static void from_json(const json& in, std::optional<double>& value) {
    value = in.is_null() ? std::nullopt : std::optional(in.get<double>());
  }
};

// Functions that the JSON library finds by the namespace of their types.
namespace fl {

using nlohmann::json;

// These functions tell nlohmann's library how to convert our types: each has all members by name.

/// Writes a number; one that is infinite or NaN becomes a text, because JSON has no such numbers.
static json real(double value) {
  return std::isfinite(value) ? json(value) : json(fmt::to_string(value));
}
static void take_real(const json& from, double& value) {
  const auto read = from.is_string()
                        ? number_in<double>(std::string_view(from.get_ref<const std::string&>()))
                        : number_in<double>(from);
  if (!read) throw_wrong_json(fmt::format("it must be a number, not {}", short_json(from)));
  value = *read;
}

static void to_json(json& out, const ColumnSummary& value) {
  out = {real(value.count), real(value.mean), real(value.squares)};
}
static void from_json(const json& in, ColumnSummary& value) {
  take_real(in.at(0), value.count);
  take_real(in.at(1), value.mean);
  take_real(in.at(2), value.squares);
}
static void to_json(json& out, const MetricValue& value) {
  out = {{"name", value.name}, {"value", real(value.value)}, {"weight", real(value.weight)}};
}
static void from_json(const json& in, MetricValue& value) {
  in.at("name").get_to(value.name);
  take_real(in.at("value"), value.value);
  take_real(in.at("weight"), value.weight);
}
static void to_json(json& out, const EvalReport& value) {
  out = {{"examples", value.examples},
         {"loss", real(value.loss)},
         {"metrics", value.metrics},
         {"predictions", value.predictions}};
}
static void from_json(const json& in, EvalReport& value) {
  in.at("examples").get_to(value.examples);
  take_real(in.at("loss"), value.loss);
  in.at("metrics").get_to(value.metrics);
  in.at("predictions").get_to(value.predictions);
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LocalOptimizer, kind, beta1, beta2, epsilon)
static void to_json(json& out, const TrainSettings& value) {
  for_each_train_field([&](const auto& row) { out[row.name] = value.*row.member; });
}
static void from_json(const json& in, TrainSettings& value) {
  for_each_train_field([&](const auto& row) { in.at(row.name).get_to(value.*row.member); });
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LearnOptions, model, data, data_memory_bytes, skip_bad_files,
                                   partition, shard, shards, partition_seed, holdout, evaluate_only,
                                   device, precision, recomputes, offloads_optimizer, threads,
                                   hogwild, keep_moments, state, client_seed)
}  // namespace fl

namespace fl::site {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ParallelSettings, hook, topology, unused_parameters, bucket_mb,
                                   zero, tp, sequence_parallel, cp, context_parallel, ep,
                                   expert_parallel, pp, pipeline)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GroupOptions, generation, rank, size, backend, hook, topology,
                                   bucket_mb, unused_parameters, timeout_s, check_calls,
                                   agent_address, measured)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankLoaded, layout, train, holdout, summaries)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankFiles, weights, correction, result)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankWork, run, settings, has_correction, has_result, files, away,
                                   has_trace)

}  // namespace fl::site

namespace fl {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SyncTimes, ranks, compute, exposed, hidden, coding)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FallBacks, fp32_steps, overflows, odd_norms)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainReport, examples, steps, loss, seconds, sync, fall_backs,
                                   predictions, setup)
// A trace has many spans, so their members have no names.
static void to_json(json& out, const TraceSpan& span) {
  out = {span.name, span.track, span.begin_us, span.duration_us, span.bytes};
}
static void from_json(const json& in, TraceSpan& span) {
  in.at(0).get_to(span.name);
  in.at(1).get_to(span.track);
  in.at(2).get_to(span.begin_us);
  in.at(3).get_to(span.duration_us);
  in.at(4).get_to(span.bytes);
}

}  // namespace fl

namespace fl::site {

namespace {

constexpr std::array codes{Errc::invalid_input, Errc::unavailable, Errc::cancelled,
                           Errc::not_found,     Errc::conflict,    Errc::deadline};

}  // namespace

json to_json_of(const LearnOptions& value) { return value; }
json to_json_of(const ParallelSettings& value) { return value; }
json to_json_of(const GroupOptions& value) { return value; }
json to_json_of(const RankLoaded& value) { return value; }
json to_json_of(const RankWork& value) { return value; }
json to_json_of(const TrainReport& value) { return value; }
json to_json_of(const EvalReport& value) { return value; }
json to_json_of(const std::vector<TraceSpan>& spans) { return spans; }

Result<std::vector<TraceSpan>> parse_spans(const json& spans) {
  if (spans.size() > limits::trace_spans_max) {
    return Error(Errc::protocol, fmt::format("a rank sent {} spans of a trace; the limit is {}",
                                             spans.size(), limits::trace_spans_max));
  }
  return value_as<std::vector<TraceSpan>>(spans);
}

Result<MeasuredChoices> parse_measured(const json& answer) {
  const auto found = answer.is_object() ? answer.find("measured") : answer.end();
  return value_as<MeasuredChoices>(found == answer.end() ? json() : *found);
}

template <class Value>
Result<Value> parse_as(const json& message) {
  return value_as<Value>(message);
}
template Result<LearnOptions> parse_as(const json&);
template Result<ParallelSettings> parse_as(const json&);
template Result<GroupOptions> parse_as(const json&);
template Result<RankLoaded> parse_as(const json&);
template Result<RankWork> parse_as(const json&);
template Result<TrainReport> parse_as(const json&);
template Result<EvalReport> parse_as(const json&);

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

json rank_hello(const SiteMember& member, int size) {
  return {{"type", "hello"},
          {"rank", member.rank},
          {"size", size},
          {"host", member.host},
          {"process", member.process},
          {"boot", boot_id()},
          {"version", software_version_and_commit}};
}

json rank_refusal(const std::string& reason) { return {{"type", "refused"}, {"reason", reason}}; }

Result<SiteMember> parse_rank_hello(const json& message, int size) {
  if (member_text(message, "type") != "hello")
    return Error(Errc::protocol, "a rank began with another message than its hello");
  SiteMember member;
  const auto rank = member_integer(message, "rank");
  if (!rank || *rank < 0 || *rank >= size)
    return Error(Errc::conflict,
                 fmt::format("{} said that it is rank {}: ranks count from 0 to {}",
                             member_text(message, "host"),
                             rank ? std::to_string(*rank) : "no whole number", size - 1));
  member.rank = static_cast<int>(*rank);
  member.host = member_text(message, "host");
  member.process = member_integer(message, "process").value_or(0);
  member.is_here = member_text(message, "boot") == boot_id() && member.host == host_name();
  const std::string version = member_text(message, "version");
  if (version != software_version_and_commit) {
    return Error(Errc::conflict,
                 fmt::format("{} is of version {}, the agent of {}", to_string(member), version,
                             software_version_and_commit));
  }
  const auto its_size = member_integer(message, "size").value_or(0);
  if (its_size != size) {
    return Error(Errc::conflict, fmt::format("{} belongs to a site of {} ranks, the agent to one "
                                             "of {}",
                                             to_string(member), its_size, size));
  }
  return member;
}

json rank_error(const Error& error) {
  return {{"type", "error"}, {"code", to_string(error.code())}, {"reason", error.message()}};
}

Error parse_rank_error(const json& message) {
  const std::string told = member_text(message, "code");
  for (const Errc code : codes) {
    if (told == to_string(code)) return {code, member_text(message, "reason")};
  }
  return {Errc::internal, member_text(message, "reason")};
}

std::string counter_text(std::int64_t value) {
  return to_base64url(bytes_of(std::string_view(std::to_string(value))));
}

std::optional<std::int64_t> counter_of(const std::string& text) {
  const auto digits = from_base64url(text);
  return digits ? number_in<std::int64_t>(*digits) : std::nullopt;
}

}  // namespace fl::site
