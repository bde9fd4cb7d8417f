// SPDX-License-Identifier: Apache-2.0
#include "client/learn/trace.hpp"

#include "shared/base/async/clock.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl {

using nlohmann::json;

namespace {

constexpr std::string_view opening = "[\n";
constexpr std::string_view closing = "\n]\n";

std::string name_of(const char* kind, int process, int track, std::string_view name) {
  const json event = {{"ph", "M"},
                      {"name", kind},
                      {"pid", process},
                      {"tid", track},
                      {"args", {{"name", std::string(name)}}}};
  return json_text(event);
}

}  // namespace

TraceSpan trace_span(std::string name, std::string track, double ago_s, double duration_s,
                     std::uint64_t bytes) {
  return {.name = std::move(name),
          .track = std::move(track),
          .begin_us = static_cast<std::int64_t>((Clock::unix_seconds() - ago_s) * 1e6),
          .duration_us = static_cast<std::int64_t>(duration_s * 1e6),
          .bytes = bytes};
}

Result<std::shared_ptr<TraceFile>> TraceFile::make(Files& files,
                                                   const std::filesystem::path& path) {
  auto file = files.open(path, OpenMode::truncate);
  if (!file) return file.error().at("--trace");
  return std::shared_ptr<TraceFile>(new TraceFile(std::move(*file), path.string()));
}

void TraceFile::name_process(int process, std::string_view name) {
  const MutexLock lock(mutex_);
  append(name_of("process_name", process, 0, name));
}

void TraceFile::write(int process, std::span<const TraceSpan> spans) {
  const MutexLock lock(mutex_);
  std::string events;
  for (const TraceSpan& span : spans) {
    const int track = track_of(process, span.track, events);
    json event = {{"ph", "X"},    {"name", span.name},   {"pid", process},
                  {"tid", track}, {"ts", span.begin_us}, {"dur", span.duration_us}};
    if (span.bytes > 0) event["args"] = {{"bytes", span.bytes}};
    if (!events.empty()) events += ",\n";
    events += json_text(event);
  }
  append(std::move(events));
}

/// The track's number. Appends its name to the events when it is new.
int TraceFile::track_of(int process, const std::string& track, std::string& events) {
  const auto found = std::ranges::find(tracks_, std::pair(process, track));
  const int number = static_cast<int>(found - tracks_.begin()) + 1;
  if (found != tracks_.end()) return number;
  tracks_.emplace_back(process, track);
  if (!events.empty()) events += ",\n";
  events += name_of("thread_name", process, number, track);
  return number;
}

void TraceFile::append(std::string events) {
  if (!file_ || events.empty()) return;
  events.insert(0, end_ == 0 ? opening : ",\n");
  const std::uint64_t end = end_ + events.size();
  Result<void> written =
      Error(Errc::too_large, fmt::format("it has reached {} bytes", limits::trace_bytes_max));
  if (end <= limits::trace_bytes_max) {
    events += closing;
    written = file_->write_at(end_, std::as_bytes(std::span(events)));
  }
  if (!written) {
    log_warn("{} gets no more of the trace: {}", path_, written.error().message());
    file_.reset();
    return;
  }
  end_ = end;
}

void trace_work(TraceFile* trace, std::string_view what, std::uint32_t round, double took_s,
                std::uint64_t bytes) {
  if (trace == nullptr) return;
  const TraceSpan span = trace_span(fmt::format("{} {}", what, round),
                                    bytes > 0 ? "transfers" : "work", took_s, took_s, bytes);
  trace->write(0, {&span, 1});
}

}  // namespace fl
