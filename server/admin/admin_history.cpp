// SPDX-License-Identifier: Apache-2.0
#include "server/admin/admin_history.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl::server {

namespace {

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
    FL_TRY(records.uploads, store.pages().newest_uploads(run->id));
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

}  // namespace fl::server
