// SPDX-License-Identifier: Apache-2.0
// Codes values for the columns of the database: names of states and levels, digests, seeds,
// times that never were. Reading checks them, as a person may have edited the file; what does not
// fit is `corrupt`.
#pragma once

#include "server/history/records.hpp"
#include "server/history/sqlite.hpp"

#include <span>
#include <string_view>

namespace fl::server {

[[nodiscard]] std::string_view to_text(RunState state);
[[nodiscard]] std::string_view to_text(TaskState state);
[[nodiscard]] std::string_view to_text(EventLevel level);
[[nodiscard]] std::string_view to_text(AuditKind kind);
[[nodiscard]] Result<RunState> run_state_of(std::string_view text);
[[nodiscard]] Result<TaskState> task_state_of(std::string_view text);
[[nodiscard]] Result<EventLevel> event_level_of(std::string_view text);
[[nodiscard]] Result<AuditKind> audit_kind_of(std::string_view text);
/// All of them, as to_text() writes them.
[[nodiscard]] std::span<const std::string_view> audit_kind_names();

[[nodiscard]] inline std::uint64_t unsigned_of(const Row& row, int column) {
  return static_cast<std::uint64_t>(row.integer(column));  // The schema's CHECKs keep it from < 0.
}

// Values as they are, to and from a column.

[[nodiscard]] inline SqlValue to_sql(bool value) { return std::int64_t{value ? 1 : 0}; }
[[nodiscard]] inline SqlValue to_sql(int value) { return std::int64_t{value}; }
[[nodiscard]] inline SqlValue to_sql(std::uint32_t value) { return std::int64_t{value}; }
[[nodiscard]] inline SqlValue to_sql(std::int64_t value) { return value; }
[[nodiscard]] inline SqlValue to_sql(std::uint64_t value) { return value; }
[[nodiscard]] inline SqlValue to_sql(double value) { return value; }
[[nodiscard]] inline SqlValue to_sql(std::optional<double> value) {
  return value ? SqlValue(*value) : SqlValue();
}
[[nodiscard]] inline SqlValue to_sql(const std::string& value) { return value; }
[[nodiscard]] inline SqlValue to_sql(const Digest& value) { return value.hex(); }
[[nodiscard]] inline SqlValue to_sql(TaskId value) { return number_of(value); }
[[nodiscard]] inline SqlValue to_sql(RunState value) { return std::string(to_text(value)); }
[[nodiscard]] inline SqlValue to_sql(TaskState value) { return std::string(to_text(value)); }
[[nodiscard]] inline SqlValue to_sql(EventLevel value) { return std::string(to_text(value)); }
[[nodiscard]] inline SqlValue to_sql(AuditKind value) { return std::string(to_text(value)); }

Result<void> from_sql(const Row& row, int column, bool& value);
Result<void> from_sql(const Row& row, int column, int& value);
Result<void> from_sql(const Row& row, int column, std::uint32_t& value);
Result<void> from_sql(const Row& row, int column, std::int64_t& value);
Result<void> from_sql(const Row& row, int column, std::uint64_t& value);
Result<void> from_sql(const Row& row, int column, double& value);
Result<void> from_sql(const Row& row, int column, std::optional<double>& value);
Result<void> from_sql(const Row& row, int column, std::string& value);
Result<void> from_sql(const Row& row, int column, Digest& value);  // NULL: the zero digest.
Result<void> from_sql(const Row& row, int column, TaskId& value);
Result<void> from_sql(const Row& row, int column, RunState& value);
Result<void> from_sql(const Row& row, int column, TaskState& value);
Result<void> from_sql(const Row& row, int column, EventLevel& value);
Result<void> from_sql(const Row& row, int column, AuditKind& value);

// Codings for columns.hpp.

/// A time of 0, the run 0 and the zero digest mean that there is none: NULL in the table.
struct OrNull {
  [[nodiscard]] static SqlValue write(double value);
  [[nodiscard]] static SqlValue write(std::int64_t value);
  [[nodiscard]] static SqlValue write(const Digest& value);
  static Result<void> read(const Row& row, int column, double& value);
  static Result<void> read(const Row& row, int column, std::int64_t& value);
  static Result<void> read(const Row& row, int column, Digest& value);
};

/// Decimal text, as 64 bits without a sign do not fit an INTEGER.
struct AsDecimal {
  [[nodiscard]] static SqlValue write(std::uint64_t value);
  static Result<void> read(const Row& row, int column, std::uint64_t& value);
};

/// Bytes as text, so that people can copy it (base64url).
struct AsBase64 {
  [[nodiscard]] static SqlValue write(const std::string& value);
  static Result<void> read(const Row& row, int column, std::string& value);
};

}  // namespace fl::server
