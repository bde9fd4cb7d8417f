// SPDX-License-Identifier: Apache-2.0
#include "server/traces/round_spans.hpp"

#include "server/history/client_figures.hpp"
#include "server/history/rows.hpp"
#include "shared/base/json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace fl::server {
namespace {

constexpr std::string_view round_name = "round";

/// Unique in a trace. Not 0, which OpenTelemetry takes for none.
std::uint64_t span_id(const Digest& trace, std::string_view what) {
  const std::string text = fmt::format("{} {}", trace.hex(), what);
  return std::max<std::uint64_t>(1, Digest::of(bytes_of(std::string_view(text))).short_id());
}

Attribute whole(std::string_view key, std::uint64_t value) {
  return {std::string(key), static_cast<std::int64_t>(value)};
}

/// The stored setting of the run with this name; "" if there is none.
std::string setting_of(const nlohmann::json& settings, const char* name) {
  const auto found = settings.is_object() ? settings.find(name) : settings.end();
  return found != settings.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string why_not_counted(const TaskRecord& task) {
  if (!task.reason.empty()) return without_figures(task.reason);
  return task.state == TaskState::late ? "the round closed without it" : "";
}

Attributes task_attributes(const TaskRow& row, bool by_client) {
  const TaskRecord& task = row.task;
  Attributes attributes{{"tributary.task", number_of(task.id)},
                        {"tributary.outcome", std::string(to_text(task.state))},
                        whole("tributary.base_version", task.base_version),
                        whole("tributary.bytes.up", row.bytes_up),
                        whole("tributary.bytes.down", row.bytes_down)};
  if (by_client) attributes.push_back({"tributary.client", task.client});
  if (!task.codec.empty()) attributes.push_back({"tributary.codec", task.codec});
  if (task.update_bytes == 0) return attributes;
  attributes.push_back(whole("tributary.update.bytes", task.update_bytes));
  attributes.push_back(whole("tributary.update.raw_bytes", task.raw_bytes));
  attributes.push_back({"tributary.check_seconds", task.decode_seconds});
  return attributes;
}

Attributes round_attributes(const RunRecord& run, const RoundSummary& summary,
                            const TaskCounts& counts) {
  const auto count = [&counts](TaskState state) {
    return std::uint64_t{counts[static_cast<std::size_t>(state)]};
  };
  Attributes attributes{{"tributary.run", run.key},
                        {"tributary.run_id", run.id},
                        {"tributary.model", run.model},
                        whole("tributary.round", summary.round),
                        whole("tributary.rounds", run.rounds_total),
                        whole("tributary.cohort", summary.clients_offered),
                        whole("tributary.accepted", summary.clients_accepted),
                        whole("tributary.refused", count(TaskState::refused)),
                        whole("tributary.late", count(TaskState::late)),
                        whole("tributary.lost", count(TaskState::lost)),
                        whole("tributary.bytes.up", summary.bytes_up),
                        whole("tributary.bytes.down", summary.bytes_down),
                        {"tributary.digest", summary.model_digest}};
  if (summary.train_loss) attributes.push_back({"tributary.train_loss", *summary.train_loss});
  constexpr std::array<std::pair<const char*, const char*>, 5> settings{
      {{"tributary.method", "strategy"},
       {"tributary.mode", "mode"},
       {"tributary.aggregate", "aggregate"},
       {"tributary.codec", "codec"},
       {"tributary.downlink_codec", "downlink_codec"}}};
  const nlohmann::json stored = parse_json(run.config_json);
  for (const auto& [key, name] : settings) {
    if (std::string value = setting_of(stored, name); !value.empty())
      attributes.push_back({key, std::move(value)});
  }
  return attributes;
}

}  // namespace

Digest trace_id_of(const std::string& run_key, Round round) {
  const std::string text = fmt::format("tributary {} {}", run_key, round);
  return Digest::of(bytes_of(std::string_view(text)));
}

void add_task_spans(const Digest& trace, const TaskRow& row, bool by_client,
                    std::vector<Span>& spans) {
  const TaskRecord& task = row.task;
  const std::string name = fmt::format("task {}", task.id);
  Span own;
  own.trace = trace;
  own.id = span_id(trace, name);
  own.parent = span_id(trace, round_name);
  own.name = "task";
  own.begin = row.offered_at;
  own.end = std::max(row.offered_at, row.decided_at);
  own.attributes = task_attributes(row, by_client);
  own.has_failed = task.state != TaskState::accepted;
  if (own.has_failed) own.failure = why_not_counted(task);

  double at = own.begin;
  std::vector<Span> parts;
  // The times that a client reports of itself must not reach beyond its task.
  const auto add_part = [&](std::string_view what, double seconds) {
    if (!(seconds > 0) || at >= own.end) return;
    Span part;
    part.trace = trace;
    part.id = span_id(trace, fmt::format("{} {}", name, what));
    part.parent = own.id;
    part.name = what;
    part.begin = at;
    part.end = std::min(own.end, at + seconds);
    at = part.end;
    parts.push_back(std::move(part));
  };
  add_part("download", task.ready_seconds - task.train_seconds - task.save_seconds);
  add_part("training", task.train_seconds);
  add_part("coding", task.encode_seconds);
  add_part("residual", task.residual_seconds);
  add_part("digest", task.digest_seconds);
  add_part("sync", task.sync_seconds);
  add_part("files", task.save_seconds - task.encode_seconds - task.residual_seconds -
                        task.digest_seconds - task.sync_seconds);
  add_part("upload", task.upload_seconds);
  // Without any parts nothing is known about where the time went.
  if (!parts.empty()) add_part("waiting", own.end - at);
  spans.push_back(std::move(own));
  for (Span& part : parts) spans.push_back(std::move(part));
}

void add_round_spans(const Digest& trace, const RunRecord& run, const RoundSummary& summary,
                     const RecordedRound& recorded, const TaskCounts& counts,
                     std::vector<Span>& spans) {
  const double ended_at = summary.started_at + summary.seconds;
  Span own;
  own.trace = trace;
  own.id = span_id(trace, round_name);
  own.name = fmt::format("round {}", summary.round);
  own.begin = summary.started_at;
  own.end = ended_at + recorded.store_seconds;
  own.attributes = round_attributes(run, summary, counts);
  const auto add_step = [&](std::string_view name, double begin, double end) {
    Span step;
    step.trace = trace;
    step.id = span_id(trace, name);
    step.parent = own.id;
    step.name = name;
    step.begin = begin;
    step.end = end;
    spans.push_back(std::move(step));
  };
  add_step("aggregation", ended_at - recorded.apply_seconds, ended_at);
  add_step("store", ended_at, own.end);
  spans.push_back(std::move(own));
}

}  // namespace fl::server
