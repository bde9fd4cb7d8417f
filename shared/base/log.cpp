// SPDX-License-Identifier: Apache-2.0
#include "shared/base/log.hpp"

#include "shared/base/printable.hpp"

#include <fmt/format.h>
#include <google/protobuf/stubs/logging.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

namespace fl {

namespace {

/// The pattern flag %*: the message, escaped for use inside a JSON string.
class JsonEscaped final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string text = json_escaped({message.payload.data(), message.payload.size()});
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JsonEscaped>();
  }
};

/// The pattern flag %P: the line's priority as the journal of systemd takes it.
class JournalPriority final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,
              spdlog::memory_buf_t& out) override {
    const std::string_view priority = message.level >= spdlog::level::err    ? "<3>"
                                      : message.level >= spdlog::level::warn ? "<4>"
                                      : message.level >= spdlog::level::info ? "<6>"
                                                                             : "<7>";
    out.append(priority.data(), priority.data() + priority.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {
    return std::make_unique<JournalPriority>();
  }
};

/// Whether standard error goes to the journal: systemd names its device and inode.
bool is_journal() {
  const char* const stream = std::getenv("JOURNAL_STREAM");
  struct stat error {};
  return stream != nullptr && ::fstat(STDERR_FILENO, &error) == 0 &&
         fmt::format("{}:{}", error.st_dev, error.st_ino) == stream;
}

spdlog::level::level_enum spdlog_level_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warn: return spdlog::level::warn;
    case LogLevel::error: return spdlog::level::err;
    case LogLevel::off: break;
  }
  return spdlog::level::off;
}

// start_log() sets them before other threads exist.
bool logs_json = false;
bool logs_to_journal = false;

/// Without this handler protobuf writes its complaints about a peer's bytes (a string that is not
/// UTF-8) directly to standard error.
void log_protobuf(google::protobuf::LogLevel, const char*, int, const std::string& message) {
  log_at(LogLevel::debug, "protobuf: {}", message);
}

}  // namespace

void log_formatted(LogLevel level, fmt::string_view format, fmt::format_args values) {
  const auto spdlog_level = spdlog_level_of(level);
  if (level == LogLevel::off || !spdlog::should_log(spdlog_level)) return;
  try {
    std::string text = fmt::vformat(format, values);
    if (!logs_json) text = printable(text);
    spdlog::default_logger_raw()->log(spdlog_level, spdlog::string_view_t(text));
  } catch (const std::exception&) {
    // Drop a line that can't be formatted, as spdlog does.
  }
}

void log_progress(const std::string& text) {
  auto& logger = *spdlog::default_logger_raw();
  const spdlog::details::log_msg message(logger.name(), spdlog::level::info, text);
  for (const auto& sink : logger.sinks()) {
    sink->log(message);
    sink->flush();
  }
}

void set_log_level(LogLevel level) { spdlog::set_level(spdlog_level_of(level)); }

void log_fatal(fmt::string_view program, fmt::string_view text) {
  if (logs_json) {
    log_error("{}", text);
  } else {
    fmt::print(stderr, "{}{}: {}\n", logs_to_journal ? "<3>" : "", program,
               printable({text.data(), text.size()}));
  }
}

void start_log(bool as_json, bool is_verbose) {
  logs_json = as_json;
  auto logger =
      std::make_shared<spdlog::logger>("fl", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<JsonEscaped>('*');
  formatter->add_flag<JournalPriority>('P');
  logs_to_journal = is_journal();
  const bool is_terminal = ::isatty(STDERR_FILENO) == 1;
  formatter->set_pattern(
      as_json           ? R"({"time": "%Y-%m-%dT%H:%M:%S.%e%z", "level": "%l", "message": "%*"})"
      : is_terminal     ? "\r\033[K%H:%M:%S %v"
      : logs_to_journal ? "%P%v"
                        : "%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  logger->set_formatter(std::move(formatter));
  logger->set_level(is_verbose ? spdlog::level::debug : spdlog::level::info);
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  google::protobuf::SetLogHandler(log_protobuf);
}

}  // namespace fl
