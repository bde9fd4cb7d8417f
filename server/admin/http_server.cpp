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

namespace fl::server {

namespace {

constexpr Strangers::Limits stranger_limits{
    .all = limits::admin_strangers_max,
    .of_address = limits::admin_strangers_of_address_max,
    .handshakes = limits::admin_readings_max,
    .handshakes_of_address = limits::admin_readings_of_address_max,
    .handshakes_reserved = 0,
    .turn = limits::handshake_turn,
    .turn_max = limits::handshake_turn,
    .time = limits::admin_request_max,
    .addresses = {.of_address = no_fruitless_limit, .of_unknown = no_fruitless_limit}};
constexpr VisitorPlaces::Limits request_limits{.all = limits::admin_requests_max,
                                               .viewers = limits::admin_requests_viewers_max,
                                               .open = limits::admin_requests_open_max,
                                               .of_one = limits::admin_requests_of_one_max};
constexpr VisitorPlaces::Limits stream_limits{.all = limits::admin_streams_max,
                                              .viewers = limits::admin_streams_viewers_max,
                                              .open = limits::admin_streams_open_max,
                                              .of_one = limits::admin_streams_of_one_max};
constexpr std::string_view events_path = "/api/events";
constexpr std::string_view file_path = "/api/model/file";
constexpr std::array<std::string_view, 3> fleet_names{"after", "limit", "text"};
constexpr std::array<std::string_view, 2> version_names{"run", "version"};
constexpr std::int64_t any_number = std::numeric_limits<std::uint32_t>::max();

Awaitable<EngineStatus> status_of(std::shared_ptr<RoundEngine> engine) {
  co_return engine->view().status();
}

Awaitable<std::vector<MemberStatus>> members_of(std::shared_ptr<RoundEngine> engine,
                                                std::vector<std::string> names) {
  co_return engine->view().members(names);
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

PageAnswer no_place(const VisitorPlaces::Limits& limits) {
  return refusal(503,
                 fmt::format("all places are taken: {} at a time, {} of them for those who are no "
                             "operators, {} for those who have shown no token, and {} for one "
                             "operator, or one address. Close some pages, log in, or try again",
                             limits.all, limits.viewers, limits.open, limits.of_one));
}

}  // namespace

std::string format_health(const EngineStatus& status) {
  nlohmann::json metrics = nlohmann::json::object();
  for (const MetricFigure& figure : status.metrics) metrics[figure.name] = figure.value;
  const nlohmann::json json{
      {"status", "ok"},           {"phase", status.phase},       {"run", status.run_key},
      {"run_id", status.run},     {"strategy", status.strategy}, {"codec", status.codec},
      {"model", status.model},    {"round", status.round},       {"rounds", status.rounds_total},
      {"metric", status.metric},  {"metrics", metrics},          {"clients", status.clients},
      {"present", status.present}};
  return json_text(json) + "\n";
}

Admin::Admin(net::io_context& io, const Engines& engines, std::unique_ptr<AdminHistory> history,
             AdminDoor door, std::unique_ptr<ControlStore> store,
             std::vector<ControlAction> actions, Options options, const Probes& probes)
    : engines_(engines),
      history_(std::move(history)),
      door_(std::move(door)),
      store_(std::move(store)),
      options_(std::move(options)),
      access_(options_.access, *store_),
      desk_(*store_, std::move(actions)),
      probes_(probes),
      feed_(net::make_strand(io), engines, *history_, options_.state),
      requests_(std::make_shared<VisitorPlaces>(request_limits)),
      streams_(std::make_shared<VisitorPlaces>(stream_limits)),
      doorway_(io, door_.acceptor(), "admin pages: ", stranger_limits, Opening::any_byte,
               [this](PlainSocket socket, const std::string&, Strangers::Id id) {
                 return begin(std::move(socket), id);
               }) {}

void Admin::start() {
  doorway_.start();
  net::co_spawn(door_.acceptor().get_executor(), watch(), rethrow);
}

void Admin::close() {
  is_closed_ = true;
  doorway_.close();
  net::post(door_.acceptor().get_executor(), [this] { door_.close(); });
}

bool Admin::change(AdminAccess::Options access) {
  const bool is_another = access_.change(std::move(access));
  if (is_another)
    net::co_spawn(door_.acceptor().get_executor(), access_.note_another_token(), rethrow);
  return is_another;
}

Awaitable<void> Admin::watch() {
  while (!is_closed_) {
    co_await sleep_for(limits::lines_look);
    const auto counted = co_await access_.count_left_out();
    if (!counted)
      doorway_.note(LogLevel::warn, "counts that are not in the audit",
                    "can't write into the audit: " + counted.error().message());
  }
}

std::function<void()> Admin::begin(PlainSocket socket, Strangers::Id id) {
  auto stream = std::make_shared<PlainStream>(std::move(socket));
  const auto strand = stream->get_executor();
  net::co_spawn(strand, serve(stream, id), [this, id](const std::exception_ptr& failure) {
    doorway_.leave(id);
    try {
      rethrow(failure);
    } catch (const std::exception& error) {
      log_error("an admin request ended by an exception: {}", error.what());
    }
  });
  return [stream] { net::post(stream->get_executor(), [stream] { stream->close(); }); };
}

Awaitable<void> Admin::serve(std::shared_ptr<PlainStream> stream, Strangers::Id id) {
  stream->expires_after(limits::admin_request_max);
  const Caller caller = caller_of(stream->socket());
  HttpRequest request;
  if (const auto ec = co_await read_http(*stream, request, limits::admin_body_bytes_max); ec) {
    if (ec != http::error::body_limit) co_return;
    co_await write_all(*stream, whole_text(refusal(413, "the body is too long"), false));
    co_return;
  }
  const bool is_head = request.method() == http::verb::head;
  auto made = co_await answer_stranger(request, caller);
  std::optional<Visitor> visitor;
  if (!made) {
    visitor = co_await access_.visitor_of(request, caller);
    // The control desk checks for itself who makes the request.
    const bool is_enough = visitor || ControlDesk::has(address_of(request).first);
    if (!is_enough) made = AdminAccess::must_log_in();
  }
  if (made) {
    std::string text = whole_text(*made, is_head);
    co_await write_all(*stream, std::move(text));
  } else {
    co_await serve_visitor(*stream, std::move(request), std::move(visitor), caller, id);
  }
  beast::error_code ignored;
  stream->socket().shutdown(PlainSocket::shutdown_send, ignored);
}

Awaitable<std::optional<PageAnswer>> Admin::answer_stranger(const HttpRequest& request,
                                                            const Caller& caller) {
  const std::string path = address_of(request).first;
  // Probes say so little that they need no token, which a kubelet could not send.
  if (auto probed = probes_.answer(path)) co_return probed;
  if (auto refused = access_.refuse(request)) co_return refused;
  const bool is_post = request.method() == http::verb::post;
  const bool is_login = path == "/api/login";
  if (is_login || path == "/api/logout") {
    if (!is_post) co_return refusal(405, "this address takes POST");
    if (!is_login) co_return access_.log_out(request);
    co_return co_await access_.log_in(request, caller);
  }
  // The files of the dashboard are in every copy of the program; without them nobody could log in.
  const WebFile* const file = find_web_file(path);
  const bool is_session = path == "/api/session";
  if (!is_session && file == nullptr) co_return std::nullopt;
  if (is_post) co_return refusal(405, "this page is read-only");
  if (is_session) co_return co_await access_.describe(request, caller);
  co_return file_answer(*file, request);
}

Awaitable<void> Admin::serve_visitor(PlainStream& stream, HttpRequest request,
                                     std::optional<Visitor> visitor, Caller caller,
                                     Strangers::Id id) {
  const bool is_head = request.method() == http::verb::head;
  const bool is_post = request.method() == http::verb::post;
  auto [path, query] = address_of(request);
  const bool is_events = path == events_path && !is_post;
  const bool is_file = path == file_path && !is_post;
  VisitorPlaces& places = is_events || is_file ? *streams_ : *requests_;
  const auto place = places.take(holder_of(visitor, caller));
  std::optional<PageAnswer> made;
  if (!place) made = no_place(places.limits());
  // The difference of two versions of a small round tells a client's update, so a model needs a
  // token.
  if (place && is_file && !visitor->is_known)
    made = refusal(401,
                   "a version of the model is for those who have shown a token, an operator's or "
                   "that of --admin-token-file: log in first");
  if (place) doorway_.leave(id);
  if (!made && is_events) {
    co_await stream_events(stream, request);
    co_return;
  }
  if (!made && is_file) {
    co_await send_version(stream, std::move(query), is_head, *visitor, caller);
    co_return;
  }
  if (!made) made = co_await answer(std::move(request), std::move(visitor), std::move(caller));
  std::string text = whole_text(*made, is_head);
  stream.expires_after(limits::admin_request_max);
  co_await write_all(stream, std::move(text));
}

Awaitable<PageAnswer> Admin::answer(HttpRequest request, std::optional<Visitor> visitor,
                                    Caller caller) {
  auto [path, query] = address_of(request);
  if (ControlDesk::has(path)) {
    co_return co_await desk_.answer(std::move(request), std::move(visitor), std::move(caller));
  }
  if (request.method() == http::verb::post) co_return refusal(405, "this page is read-only");
  co_return co_await page(std::move(path), std::move(query));
}

std::span<const Admin::EnginePage> Admin::engine_pages() {
  static constexpr EnginePage pages[] = {{"/healthz", &Admin::health_page},
                                         {"/metrics", &Admin::metrics_page},
                                         {"/api/status", &Admin::status_page},
                                         {"/api/fleet", &Admin::fleet_page},
                                         {"/api/settings", &Admin::settings_page}};
  return pages;
}

Awaitable<PageAnswer> Admin::page(std::string path, std::string query) {
  for (const EnginePage& each : engine_pages()) {
    if (path != each.path) continue;
    const auto answer = each.answer;
    co_return co_await (this->*answer)(std::move(query));
  }
  for (const HistoryPage& each : history_pages())
    if (path == each.path) co_return co_await history_page(each, std::move(query));
  std::string known =
      fmt::format("there are /, /livez, /readyz, /api/session, {}, {}", events_path, file_path);
  for (const EnginePage& each : engine_pages()) known += fmt::format(", {}", each.path);
  for (const HistoryPage& each : history_pages()) known += fmt::format(", {}", each.path);
  co_return refusal(404, known);
}

Awaitable<PageAnswer> Admin::health_page(std::string) {
  const auto engine = engines_.newest();
  const EngineStatus status = co_await on(engine->executor(), status_of(engine));
  PageAnswer made;
  made.body = format_health(status);
  co_return made;
}

Awaitable<PageAnswer> Admin::metrics_page(std::string) {
  const auto engine = engines_.newest();
  const EngineStatus status = co_await on(engine->executor(), status_of(engine));
  auto text = co_await options_.metrics->page(status);
  PageAnswer made = answer_of(std::move(text));
  if (made.status == 200) made.type = "text/plain; version=0.0.4; charset=utf-8";
  co_return made;
}

Awaitable<PageAnswer> Admin::status_page(std::string) {
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
  const auto engine = engines_.newest();
  const auto members = co_await on(engine->executor(), members_of(engine, std::move(names)));
  PageAnswer made;
  made.body = fleet_text(*records, members, Clock::unix_seconds(), options_.show_clients);
  co_return made;
}

Awaitable<PageAnswer> Admin::settings_page(std::string) {
  auto text = co_await store_->run(options_.setting_form);
  co_return answer_of(std::move(text));
}

Awaitable<PageAnswer> Admin::history_page(const HistoryPage& page, std::string query) {
  auto asked = AddressQuery::parse(query, page.names);
  if (!asked) co_return refusal(400, asked.error().message());
  auto text = co_await history_->read(page, std::move(*asked), options_.show_clients);
  co_return answer_of(std::move(text));
}

Awaitable<void> Admin::stream_events(PlainStream& stream, const HttpRequest& request) {
  // A small send buffer: a status that waits in the kernel is out of date when it is read.
  beast::error_code ignored;
  stream.socket().set_option(net::socket_base::send_buffer_size(limits::admin_stream_buffer),
                             ignored);
  std::string message = stream_head("text/event-stream") + "retry: 2000\n\n";
  std::uint64_t seen = 0;
  TimePoint said_at = Clock::now();
  // A visitor who has logged out meanwhile sees no more.
  while (!is_closed_) {
    const bool is_let_in = co_await access_.is_still_let_in(request);
    if (!is_let_in) co_return;
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

Awaitable<void> Admin::send_version(PlainStream& stream, std::string query, bool is_head,
                                    Visitor visitor, Caller caller) {
  const auto asked = AddressQuery::parse(query, version_names);
  const auto run = asked ? asked->number("run", 1, any_number) : asked.error();
  const auto version = asked ? asked->number("version", 0, any_number) : asked.error();
  if (!run || !version) {
    const PageAnswer refused = answer_of(run ? version.error() : run.error());
    co_await write_all(stream, whole_text(refused, is_head));
    co_return;
  }
  const auto number =
      *version ? std::optional<Version>(static_cast<Version>(**version)) : std::nullopt;
  const auto found = co_await history_->find_version(*run, number);
  // An open file keeps its bytes, even if the run no longer keeps the version.
  auto file = found
                  ? posix_files().open(options_.state / "checkpoints" / found->file, OpenMode::read)
                  : Result<std::unique_ptr<File>>(found.error());
  if (!file) {
    const PageAnswer refused = answer_of(file.error());
    co_await write_all(stream, whole_text(refused, is_head));
    co_return;
  }
  auto note = [who = name_of(visitor),
               text = fmt::format("downloads {}, from {}", found->name, caller.address)](
                  Store& store) { return store.audit().add(AuditKind::control, "", text, who); };
  const auto noted = co_await store_->run(std::move(note));
  if (!noted) {
    const PageAnswer refused = answer_of(noted.error());
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
      co_return;  // The client sees that bytes are missing.
    }
    at += text.size();
  }
}

}  // namespace fl::server
