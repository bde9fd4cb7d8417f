// SPDX-License-Identifier: Apache-2.0
#include "server/admin/http_server.hpp"

#include "server/admin/request.hpp"
#include "server/admin/web_files.hpp"
#include "shared/base/async/clock.hpp"
#include "shared/base/json.hpp"
#include "shared/base/log.hpp"

#include <boost/asio/strand.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace fl {

namespace {

constexpr auto pause_after_accept_error = std::chrono::milliseconds(100);
constexpr std::array<std::string_view, 3> fleet_names{"after", "limit", "text"};
constexpr std::array<std::string_view, 2> version_names{"run", "version"};
constexpr std::int64_t any_number = std::numeric_limits<std::uint32_t>::max();

Awaitable<EngineStatus> status_of(std::shared_ptr<RoundEngine> engine) {
  co_return engine->status();
}

Awaitable<std::vector<MemberStatus>> members_of(std::shared_ptr<RoundEngine> engine,
                                                std::vector<std::string> names) {
  co_return engine->members(names);
}

/// A file of the dashboard. A browser keeps it and asks whether it is still the same.
PageAnswer file_answer(const WebFile& file, const HttpRequest& request) {
  const auto known = request[http::field::if_none_match];
  PageAnswer made;
  made.type = file.type;
  made.headers = fmt::format("ETag: {}\r\nCache-Control: no-cache\r\n", file.tag);
  if (std::string_view(known.data(), known.size()) == file.tag) {
    made.status = 304;
  } else {
    made.body = std::string(file.bytes);
  }
  return made;
}

std::string whole_text(const PageAnswer& made, bool is_head) {
  return answer_head(made.status, made.type, made.headers, made.body.size()) +
         (is_head ? "" : made.body);
}

/// One of the places for streams and downloads, while it lives.
class StreamPlace {
 public:
  explicit StreamPlace(std::shared_ptr<std::atomic<int>> taken) : taken_(std::move(taken)) {
    number_ = ++*taken_;
  }
  ~StreamPlace() { --*taken_; }
  StreamPlace(const StreamPlace&) = delete;
  StreamPlace& operator=(const StreamPlace&) = delete;
  [[nodiscard]] bool is_there() const { return number_ <= limits::admin_streams_max; }

 private:
  std::shared_ptr<std::atomic<int>> taken_;
  int number_ = 0;
};

PageAnswer no_place() {
  return refusal(503,
                 fmt::format("{} streams of events and downloads are open, which is the limit: "
                             "close some pages, or try again",
                             limits::admin_streams_max));
}

}  // namespace

std::string format_health(const EngineStatus& status) {
  nlohmann::json metrics = nlohmann::json::object();
  for (const MetricFigure& figure : status.metrics) metrics[figure.name] = figure.value;
  const nlohmann::json json{
      {"status", "ok"},          {"phase", status.phase}, {"run", status.run_key},
      {"model", status.model},   {"round", status.round}, {"rounds", status.rounds_total},
      {"metric", status.metric}, {"metrics", metrics},    {"clients", status.clients}};
  return json_text(json) + "\n";
}

Admin::Admin(net::io_context& io, const CurrentEngine& current,
             std::unique_ptr<AdminHistory> history, AdminDoor door,
             std::unique_ptr<ControlStore> store, std::vector<ControlAction> actions,
             Options options, const Probes& probes)
    : io_(io),
      current_(current),
      history_(std::move(history)),
      door_(std::move(door)),
      store_(std::move(store)),
      options_(std::move(options)),
      access_(options_.access, *store_),
      desk_(*store_, std::move(actions)),
      probes_(probes),
      feed_(net::make_strand(io), current, *history_, options_.state) {}

void Admin::start() { net::co_spawn(door_.executor(), accept(), rethrow); }

void Admin::close() {
  is_closed_ = true;
  net::post(door_.executor(), [this] { door_.close(); });
}

Awaitable<void> Admin::accept() {
  while (!is_closed_) {
    net::any_io_executor strand = net::make_strand(io_);
    auto socket = co_await door_.accept(strand);
    if (is_closed_) co_return;
    if (!socket) {
      // Most likely there are no file descriptors left.
      log_warn("admin pages: can't accept a connection: {}", socket.error().message());
      co_await sleep_for(pause_after_accept_error);
      continue;
    }
    if (requests_ - *streams_ >= limits::admin_requests_max) {
      log_warn("closed a new admin request: {} are open, which is the limit",
               limits::admin_requests_max);
      continue;
    }
    ++requests_;
    net::co_spawn(strand, serve(std::move(*socket)), [this](const std::exception_ptr& failure) {
      --requests_;
      try {
        rethrow(failure);
      } catch (const std::exception& error) {
        log_error("an admin request ended by an exception: {}", error.what());
      }
    });
  }
}

Awaitable<void> Admin::serve(PlainSocket socket) {
  PlainStream stream(std::move(socket));
  stream.expires_after(limits::admin_request_max);
  HttpRequest request;
  if (const auto ec = co_await read_http(stream, request, limits::admin_body_bytes_max); ec) {
    if (ec != http::error::body_limit) co_return;
    co_await write_all(stream, whole_text(refusal(413, "the body is too long"), false));
    co_return;
  }
  const bool is_head = request.method() == http::verb::head;
  auto [path, query] = address_of(request);
  // They say so little that they need no token, which a kubelet could not send.
  if (const auto probed = probes_.answer(path)) {
    std::string text = whole_text(*probed, is_head);
    co_await write_all(stream, std::move(text));
    co_return;
  }
  auto refused = co_await refuse(request);
  if (!refused && path == "/api/events") {
    co_await stream_events(stream, request);
  } else if (!refused && path == "/api/model/file") {
    co_await send_version(stream, std::move(query), is_head);
  } else {
    PageAnswer made;
    if (refused) {
      made = std::move(*refused);
    } else {
      made = co_await answer(std::move(request));
    }
    std::string text = whole_text(made, is_head);
    stream.expires_after(limits::admin_request_max);
    co_await write_all(stream, std::move(text));
  }
  beast::error_code ignored;
  stream.socket().shutdown(PlainSocket::shutdown_send, ignored);
}

Awaitable<std::optional<PageAnswer>> Admin::refuse(const HttpRequest& request) {
  if (auto refused = access_.refuse(request)) co_return refused;
  // The files of the dashboard are in every copy of the program; without them nobody could log in.
  // The control desk looks for itself who asks.
  const std::string path = address_of(request).first;
  const bool is_open = path == "/api/login" || path == "/api/logout" || path == "/api/session" ||
                       ControlDesk::has(path) || find_web_file(path) != nullptr;
  if (is_open) co_return std::nullopt;
  const auto visitor = co_await access_.visitor_of(request);
  if (visitor) co_return std::nullopt;
  co_return AdminAccess::must_log_in();
}

Awaitable<PageAnswer> Admin::answer(HttpRequest request) {
  auto [path, query] = address_of(request);
  if (ControlDesk::has(path)) {
    auto visitor = co_await access_.visitor_of(request);
    co_return co_await desk_.answer(std::move(request), std::move(visitor));
  }
  const bool is_post = request.method() == http::verb::post;
  const bool is_login = path == "/api/login";
  if (is_login || path == "/api/logout") {
    if (!is_post) co_return refusal(405, "this address takes POST");
    if (!is_login) co_return access_.log_out(request);
    co_return co_await access_.log_in(std::move(request));
  }
  if (is_post) co_return refusal(405, "this page is read-only");
  if (path == "/api/session") co_return co_await access_.describe(std::move(request));
  if (const WebFile* const file = find_web_file(path)) co_return file_answer(*file, request);
  co_return co_await page(std::move(path), std::move(query));
}

Awaitable<PageAnswer> Admin::page(std::string path, std::string query) {
  if (path == "/healthz" || path == "/metrics") {
    const auto engine = current_.get();
    const EngineStatus status = co_await on(engine->executor(), status_of(engine));
    if (path == "/metrics") {
      auto text = co_await options_.metrics->page(status);
      PageAnswer made = answer_of(std::move(text));
      if (made.status == 200) made.type = "text/plain; version=0.0.4; charset=utf-8";
      co_return made;
    }
    PageAnswer made;
    made.body = format_health(status);
    co_return made;
  }
  if (path == "/api/rounds" || path == "/api/choices")
    co_return co_await rounds_page(std::move(query), path == "/api/choices");
  if (path == "/api/status") co_return co_await status_page();
  if (path == "/api/fleet") co_return co_await fleet_page(std::move(query));
  for (const HistoryPage& each : history_pages())
    if (path == each.path) co_return co_await history_page(each, std::move(query));
  std::string known =
      "there are /, /healthz, /livez, /readyz, /metrics, /api/session, /api/status, /api/events, "
      "/api/fleet, "
      "/api/model/file, /api/rounds, /api/choices";
  for (const HistoryPage& each : history_pages()) known += fmt::format(", {}", each.path);
  co_return refusal(404, known);
}

Awaitable<PageAnswer> Admin::rounds_page(std::string query, bool is_choices) {
  const auto asked = parse_page_query(
      query, is_choices ? limits::admin_page_choices_max : limits::admin_page_rounds_max);
  if (!asked) co_return refusal(400, asked.error().message());
  if (is_choices) {
    auto text = co_await history_->choices(*asked);
    co_return answer_of(std::move(text));
  }
  auto text = co_await history_->rounds(*asked);
  co_return answer_of(std::move(text));
}

Awaitable<PageAnswer> Admin::status_page() {
  const LiveFeed::News news = co_await feed_.newest();
  if (!news.text) co_return refusal(503, "nothing is known yet: ask again in a second");
  PageAnswer made;
  made.body = *news.text;
  co_return made;
}

Awaitable<PageAnswer> Admin::fleet_page(std::string query) {
  const auto asked = AddressQuery::parse(query, fleet_names);
  if (!asked) co_return refusal(400, asked.error().message());
  const auto limit = asked->number("limit", 1, limits::admin_page_members_max);
  if (!limit) co_return refusal(400, limit.error().message());
  const auto records =
      co_await history_->fleet(asked->text("after"), asked->text("text"),
                               static_cast<int>(limit->value_or(limits::admin_page_members_max)));
  if (!records) co_return answer_of(records.error());
  std::vector<std::string> names;
  for (const ClientRecord& client : records->clients) names.push_back(client.name);
  const auto engine = current_.get();
  const auto members = co_await on(engine->executor(), members_of(engine, std::move(names)));
  PageAnswer made;
  made.body = fleet_text(*records, members, Clock::unix_seconds(), options_.show_clients);
  co_return made;
}

Awaitable<PageAnswer> Admin::history_page(const HistoryPage& page, std::string query) {
  auto asked = AddressQuery::parse(query, page.names);
  if (!asked) co_return refusal(400, asked.error().message());
  auto text = co_await history_->read(page, std::move(*asked), options_.show_clients);
  co_return answer_of(std::move(text));
}

Awaitable<void> Admin::stream_events(PlainStream& stream, const HttpRequest& request) {
  const StreamPlace place(streams_);
  if (!place.is_there()) {
    co_await write_all(stream, whole_text(no_place(), false));
    co_return;
  }
  // What waits in the kernel gets old.
  beast::error_code ignored;
  stream.socket().set_option(net::socket_base::send_buffer_size(limits::admin_stream_buffer),
                             ignored);
  std::string message = stream_head("text/event-stream") + "retry: 2000\n\n";
  std::uint64_t seen = 0;
  TimePoint said_at = Clock::now();
  // Whoever has logged out meanwhile sees no more.
  while (!is_closed_) {
    const auto visitor = co_await access_.visitor_of(request);
    if (!visitor) co_return;
    const LiveFeed::News news = co_await feed_.newest();
    if (news.text && news.number != seen) {
      message += event_message("status", news.number, *news.text);
      seen = news.number;
    } else if (Clock::now() - said_at >= limits::admin_stream_quiet) {
      message += ": nothing is new\n\n";
    }
    if (!message.empty()) {
      stream.expires_after(options_.stall_max);
      const auto ec = co_await write_all(stream, std::exchange(message, ""));
      if (ec) co_return;
      stream.expires_never();
      said_at = Clock::now();
    }
    co_await sleep_for(limits::admin_stream_beat);
  }
}

Awaitable<void> Admin::send_version(PlainStream& stream, std::string query, bool is_head) {
  const StreamPlace place(streams_);
  const auto asked = AddressQuery::parse(query, version_names);
  const auto run = asked ? asked->number("run", 1, any_number) : asked.error();
  const auto version = asked ? asked->number("version", 0, any_number) : asked.error();
  if (!place.is_there() || !run || !version) {
    const PageAnswer refused = !place.is_there() ? no_place()
                               : !run            ? answer_of(run.error())
                                                 : answer_of(version.error());
    co_await write_all(stream, whole_text(refused, is_head));
    co_return;
  }
  const auto number =
      *version ? std::optional<Version>(static_cast<Version>(**version)) : std::nullopt;
  const auto found = co_await history_->find_version(*run, number);
  // Once it is open, its bytes stay, even if the run no longer keeps the version.
  auto file = found
                  ? posix_files().open(options_.state / "checkpoints" / found->file, OpenMode::read)
                  : Result<std::unique_ptr<File>>(found.error());
  if (!file) {
    const PageAnswer refused = answer_of(file.error());
    co_await write_all(stream, whole_text(refused, is_head));
    co_return;
  }
  std::string text =
      answer_head(200, "application/octet-stream",
                  fmt::format("Content-Disposition: attachment; filename=\"{}\"\r\n", found->name),
                  found->bytes);
  const std::uint64_t bytes = is_head ? 0 : found->bytes;
  std::uint64_t at = 0;
  for (;;) {
    stream.expires_after(options_.stall_max);
    const auto ec = co_await write_all(stream, std::move(text));
    if (ec || at == bytes) co_return;
    text.assign(std::min<std::uint64_t>(limits::admin_file_chunk, bytes - at), '\0');
    auto read = [&file = **file, &text, at] {
      return file.read_exactly(at, std::as_writable_bytes(std::span(text)));
    };
    const auto done = co_await disk_.run(std::move(read));
    if (!done) {
      log_warn("admin pages: can't send the rest of {}: {}", found->file, done.error().message());
      co_return;  // The other end sees that bytes are missing.
    }
    at += text.size();
  }
}

}  // namespace fl
