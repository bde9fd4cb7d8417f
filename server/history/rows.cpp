// SPDX-License-Identifier: Apache-2.0
#include "server/history/rows.hpp"

#include "shared/base/io/text_of_bytes.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>
#include <utility>

namespace fl::server {

namespace {

constexpr std::array<std::string_view, 4> run_states{"waiting", "running", "finished", "stopped"};
constexpr std::array<std::string_view, 5> task_states{"offered", "accepted", "refused", "late",
                                                      "lost"};
constexpr std::array<std::string_view, 4> event_levels{"info", "notice", "warning", "error"};
constexpr std::array<std::string_view, 10> audit_kinds{
    "enrolment",  "takeover", "refusal",   "displacement", "renewal",
    "revocation", "repeats",  "operators", "control",      "login"};

template <class Enum, std::size_t count>
Result<Enum> enum_of(std::string_view text, const std::array<std::string_view, count>& names,
                     std::string_view kind) {
  for (std::size_t i = 0; i < count; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  return Error(Errc::corrupt, fmt::format("unknown {} '{}'", kind, text));
}

template <class T>
Result<void> assign(T& value, const Result<T>& read) {
  if (!read) return read.error();
  value = *read;
  return {};
}

/// A history of somebody else's may have any number.
template <class T>
Result<void> take_whole(std::int64_t found, T& value) {
  if (!std::in_range<T>(found))
    return Error(Errc::corrupt,
                 fmt::format("it has {} where a whole number from {} to {} must be", found,
                             std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  value = static_cast<T>(found);
  return {};
}

}  // namespace

std::string_view to_text(RunState state) { return run_states[static_cast<std::size_t>(state)]; }
std::string_view to_text(TaskState state) { return task_states[static_cast<std::size_t>(state)]; }
std::string_view to_text(EventLevel level) { return event_levels[static_cast<std::size_t>(level)]; }
std::string_view to_text(AuditKind kind) { return audit_kinds[static_cast<std::size_t>(kind)]; }
Result<RunState> run_state_of(std::string_view text) {
  return enum_of<RunState>(text, run_states, "state");
}
Result<TaskState> task_state_of(std::string_view text) {
  return enum_of<TaskState>(text, task_states, "state");
}
Result<EventLevel> event_level_of(std::string_view text) {
  return enum_of<EventLevel>(text, event_levels, "level of an event");
}
std::span<const std::string_view> audit_kind_names() { return audit_kinds; }
Result<AuditKind> audit_kind_of(std::string_view text) {
  return enum_of<AuditKind>(text, audit_kinds, "kind of an audit's row");
}

Result<void> from_sql(const Row& row, int column, bool& value) {
  value = row.integer(column) != 0;
  return {};
}
Result<void> from_sql(const Row& row, int column, int& value) {
  return take_whole(row.integer(column), value);
}
Result<void> from_sql(const Row& row, int column, std::uint32_t& value) {
  return take_whole(row.integer(column), value);
}
Result<void> from_sql(const Row& row, int column, std::int64_t& value) {
  value = row.integer(column);
  return {};
}
Result<void> from_sql(const Row& row, int column, std::uint64_t& value) {
  return take_whole(row.integer(column), value);
}
Result<void> from_sql(const Row& row, int column, double& value) {
  value = row.real(column);
  return {};
}
Result<void> from_sql(const Row& row, int column, std::optional<double>& value) {
  value = row.optional_real(column);
  return {};
}
Result<void> from_sql(const Row& row, int column, std::string& value) {
  value = row.text(column);
  return {};
}
Result<void> from_sql(const Row& row, int column, Digest& value) {
  if (row.is_null(column)) return {};
  const std::string text = row.text(column);
  const auto digest = Digest::parse_hex(text);
  if (!digest) return Error(Errc::corrupt, fmt::format("'{}' is not a digest", text));
  value = *digest;
  return {};
}
Result<void> from_sql(const Row& row, int column, TaskId& value) {
  value = TaskId{row.integer(column)};
  return {};
}
Result<void> from_sql(const Row& row, int column, RunState& value) {
  return assign(value, run_state_of(row.text(column)));
}
Result<void> from_sql(const Row& row, int column, TaskState& value) {
  return assign(value, task_state_of(row.text(column)));
}
Result<void> from_sql(const Row& row, int column, EventLevel& value) {
  return assign(value, event_level_of(row.text(column)));
}
Result<void> from_sql(const Row& row, int column, AuditKind& value) {
  return assign(value, audit_kind_of(row.text(column)));
}

SqlValue OrNull::write(double value) { return value == 0 ? SqlValue() : to_sql(value); }
SqlValue OrNull::write(std::int64_t value) { return value == 0 ? SqlValue() : to_sql(value); }
SqlValue OrNull::write(const Digest& value) { return value.is_zero() ? SqlValue() : to_sql(value); }
Result<void> OrNull::read(const Row& row, int column, double& value) {
  value = row.optional_real(column).value_or(0);
  return {};
}
Result<void> OrNull::read(const Row& row, int column, std::int64_t& value) {
  return from_sql(row, column, value);  // NULL: 0.
}
Result<void> OrNull::read(const Row& row, int column, Digest& value) {
  return from_sql(row, column, value);
}

SqlValue AsDecimal::write(std::uint64_t value) { return std::to_string(value); }
Result<void> AsDecimal::read(const Row& row, int column, std::uint64_t& value) {
  const std::string text = row.text(column);
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ec == std::errc() && parsed.ptr == end) return {};
  return Error(Errc::corrupt, fmt::format("the seed '{}' is not a number", text));
}

SqlValue AsBase64::write(const std::string& value) { return to_base64url(bytes_of(value)); }
Result<void> AsBase64::read(const Row& row, int column, std::string& value) {
  const auto bytes = from_base64url(row.text(column));
  if (!bytes) return Error(Errc::corrupt, bytes.error().message());
  value = *bytes;
  return {};
}

}  // namespace fl::server
