// SPDX-License-Identifier: Apache-2.0
#include "server/admin/admin_history.hpp"

#include "server/history/format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace fl {

namespace {

/// The run that a page is about, or none: then the page is empty.
Result<std::optional<RunId>> run_of(Store& store, const PageQuery& query) {
  if (query.run) return query.run;
  FL_TRY(const auto shown, store.shown_run());
  return shown ? std::optional(shown->id) : std::nullopt;
}

Result<std::string> rounds_text(Store& store, const PageQuery& query) {
  FL_TRY(const auto run, run_of(store, query));
  if (!run) return format_rows(std::vector<RoundSummary>{}, Format::json);
  FL_TRY(const auto rounds, store.summary_page(*run, query.after, query.limit));
  return format_rows(rounds, Format::json);
}

Result<std::string> choices_text(Store& store, const PageQuery& query) {
  FL_TRY(const auto run, run_of(store, query));
  if (!run) return format_rows(std::vector<CodecAsked>{}, Format::json);
  FL_TRY(const auto asked, store.codecs_asked_page(*run, query.after, query.limit));
  return format_rows(asked, Format::json);
}

}  // namespace

Result<std::unique_ptr<AdminHistory>> AdminHistory::open(const std::filesystem::path& path) {
  Store::Options options;
  options.path = path;
  options.read_only = true;
  FL_TRY(auto store, Store::open(options));
  return std::unique_ptr<AdminHistory>(new AdminHistory(std::move(store)));
}

Awaitable<Result<std::string>> AdminHistory::rounds(PageQuery query) {
  auto read = [this, query] { return rounds_text(*store_, query); };
  co_return co_await thread_.run(std::move(read));
}

Awaitable<Result<std::string>> AdminHistory::choices(PageQuery query) {
  auto read = [this, query] { return choices_text(*store_, query); };
  co_return co_await thread_.run(std::move(read));
}

Result<PageQuery> parse_page_query(std::string_view text, int limit_max) {
  PageQuery query;
  query.limit = limit_max;
  const auto wrong = [&] {
    return Error(Errc::invalid_input,
                 fmt::format("after '?' there may be run=N, after=N and limit=N with N up to {}, "
                             "joined by '&'",
                             limit_max));
  };
  while (!text.empty()) {
    const std::string_view part = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), part.size() + 1));
    const auto equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    const std::string_view digits = equals == part.npos ? "" : part.substr(equals + 1);
    std::uint32_t number = 0;
    const char* const end = digits.data() + digits.size();
    const auto [at, failed] = std::from_chars(digits.data(), end, number);
    if (failed != std::errc() || at != end) return wrong();
    if (name == "run") {
      query.run = number;
    } else if (name == "after") {
      query.after = number;
    } else if (name == "limit" && number >= 1 && number <= static_cast<std::uint32_t>(limit_max)) {
      query.limit = static_cast<int>(number);
    } else {
      return wrong();
    }
  }
  return query;
}

}  // namespace fl
