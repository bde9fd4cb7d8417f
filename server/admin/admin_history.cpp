// SPDX-License-Identifier: Apache-2.0
#include "server/admin/admin_history.hpp"

#include "server/history/client_figures.hpp"
#include "server/history/format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace fl {

namespace {

/// The run that a page is about, or none: then the page is empty.
Result<std::optional<RunId>> run_of(Runs& runs, const PageQuery& query) {
  if (query.run) return query.run;
  FL_TRY(const auto shown, runs.shown());
  return shown ? std::optional(shown->id) : std::nullopt;
}

Result<std::string> rounds_text(Store& store, const PageQuery& query, bool show_clients) {
  FL_TRY(const auto run, run_of(store.runs(), query));
  if (!run) return format_rows(std::vector<RoundSummary>{}, Format::json);
  FL_TRY(const auto rounds,
         store.pages().rounds(*run, query.after, query.limit, clients_of_a_mean(show_clients)));
  return format_rows(rounds, Format::json);
}

Result<std::string> choices_text(Store& store, const PageQuery& query) {
  FL_TRY(const auto run, run_of(store.runs(), query));
  if (!run) return format_rows(std::vector<CodecAsked>{}, Format::json);
  FL_TRY(const auto asked, store.pages().codecs_asked(*run, query.after, query.limit));
  return format_rows(asked, Format::json);
}

/// One more than a page has says whether there is another page.
Result<FleetRecords> fleet_of(Store& store, const std::string& after, const std::string& text,
                              int clients_max) {
  FleetRecords records;
  FL_TRY(records.clients, store.pages().clients(after, text, clients_max + 1));
  records.has_more = records.clients.size() > static_cast<std::size_t>(clients_max);
  if (records.has_more) records.clients.pop_back();
  FL_TRY(records.total, store.pages().client_count());
  FL_TRY(const auto run, store.runs().shown());
  if (run) {
    FL_TRY(records.paces, store.pages().upload_paces(run->id));
  }
  return records;
}

Result<VersionFile> version_of(Store& store, std::optional<RunId> asked,
                               std::optional<Version> version) {
  FL_TRY(const auto run, asked ? store.runs().find(*asked) : store.runs().shown());
  if (!run) {
    return Error(Errc::not_found,
                 asked ? fmt::format("there is no run {}", *asked) : "there is no run yet");
  }
  const auto before = version ? std::optional<Version>(*version + 1) : std::nullopt;
  FL_TRY(const auto found, store.pages().versions(run->id, before, 1));
  if (found.empty() || (version && found.front().checkpoint.version != *version)) {
    return Error(Errc::not_found, "this version is not kept: /api/model lists those that are");
  }
  const CheckpointRecord& checkpoint = found.front().checkpoint;
  return VersionFile{
      .name = fmt::format("run-{}-version-{}.safetensors", run->id, checkpoint.version),
      .file = (std::filesystem::path(run->checkpoints) / checkpoint.file).string(),
      .bytes = checkpoint.bytes};
}

}  // namespace

Result<std::unique_ptr<AdminHistory>> AdminHistory::open(const std::filesystem::path& path) {
  Store::Options options;
  options.path = path;
  options.read_only = true;
  FL_TRY(auto store, Store::open(options));
  return std::unique_ptr<AdminHistory>(new AdminHistory(std::move(store)));
}

Awaitable<Result<std::string>> AdminHistory::rounds(PageQuery query, bool show_clients) {
  auto read = [this, query, show_clients] { return rounds_text(*store_, query, show_clients); };
  co_return co_await thread_.run(std::move(read));
}

Awaitable<Result<std::string>> AdminHistory::choices(PageQuery query) {
  auto read = [this, query] { return choices_text(*store_, query); };
  co_return co_await thread_.run(std::move(read));
}

Awaitable<Result<std::string>> AdminHistory::read(const HistoryPage& page, AddressQuery query,
                                                  bool show_clients) {
  auto work = [this, text = page.text, query = std::move(query), show_clients] {
    return text(*store_, query, show_clients);
  };
  co_return co_await thread_.run(std::move(work));
}

Awaitable<Result<NewestRows>> AdminHistory::newest_rows() {
  auto work = [this] { return store_->pages().newest_rows(); };
  co_return co_await thread_.run(std::move(work));
}

Awaitable<Result<FleetRecords>> AdminHistory::fleet(std::string after, std::string text,
                                                    int clients_max) {
  auto work = [this, after = std::move(after), text = std::move(text), clients_max] {
    return fleet_of(*store_, after, text, clients_max);
  };
  co_return co_await thread_.run(std::move(work));
}

Awaitable<Result<VersionFile>> AdminHistory::find_version(std::optional<RunId> run,
                                                          std::optional<Version> version) {
  auto work = [this, run, version] { return version_of(*store_, run, version); };
  co_return co_await thread_.run(std::move(work));
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
