// SPDX-License-Identifier: Apache-2.0
#include "server/admin/http_server.hpp"

#include "server/history/format.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/net/http.hpp"

#include <fmt/format.h>

namespace fl {

namespace {

Awaitable<EngineStatus> status_of(std::shared_ptr<RoundEngine> engine) {
  co_return engine->status();
}

/// What was read as the page's JSON, or why it could not be.
template <class Records>
HttpAnswer page_of(const Result<Records>& records) {
  HttpAnswer answer;
  if (records) {
    answer.body = format_rows(*records, Format::json);
  } else {
    answer.status = 503;
    answer.body = json_text(nlohmann::json{{"error", records.error().message()}}) + "\n";
  }
  return answer;
}

}  // namespace

std::string format_metrics(const EngineStatus& status) {
  std::string text;
  const auto add = [&text](std::string_view name, std::string_view type, std::string_view help,
                           double value) {
    fmt::format_to(std::back_inserter(text),
                   "# HELP tributary_{0} {1}\n# TYPE tributary_{0} {2}\ntributary_{0} {3}\n", name,
                   help, type, value);
  };
  add("round", "gauge", "The round under way, or the last.", status.round);
  add("rounds_total", "gauge", "Rounds that the run is to have.", status.rounds_total);
  add("clients_connected", "gauge", "Training clients connected.", status.clients);
  add("evaluators_connected", "gauge", "Evaluating clients connected.", status.evaluators);
  add("round_clients_offered", "gauge", "Clients asked in the round under way.", status.asked);
  add("round_clients_accepted", "gauge", "Updates accepted in the round under way.",
      status.accepted);
  add("received_bytes_total", "counter",
      "WebSocket payload bytes from clients since the run began here.",
      static_cast<double>(status.bytes_up));
  add("sent_bytes_total", "counter", "WebSocket payload bytes to clients since the run began here.",
      static_cast<double>(status.bytes_down));
  add("round_seconds", "gauge", "Mean duration of the rounds since the run began here.",
      status.round_seconds);
  if (status.accuracy)
    add("accuracy", "gauge", "Newest evaluation's accuracy, 0 to 1.", *status.accuracy);
  return text;
}

Awaitable<void> Admin::serve(net::ip::tcp::socket socket) {
  beast::tcp_stream stream(std::move(socket));
  stream.expires_after(limits::handshake_max);
  HttpRequest request;
  if (co_await read_http(stream, request, 0)) co_return;
  HttpAnswer made;
  const bool is_head = request.method() == http::verb::head;
  if (is_head || request.method() == http::verb::get) {
    std::string target(request.target());
    made = co_await page(std::move(target));
  } else {
    made.status = 405;
    made.body = "{\"error\": \"these pages are read-only\"}\n";
  }
  const bool is_text = !made.body.starts_with('{') && !made.body.starts_with('[');
  std::string text = http_answer(
      made.status, is_text ? "text/plain; version=0.0.4; charset=utf-8" : "application/json",
      is_head ? "" : made.body);
  co_await write_all(stream, std::move(text));
  beast::error_code ignored;
  stream.socket().shutdown(net::ip::tcp::socket::shutdown_send, ignored);
}

Awaitable<HttpAnswer> Admin::page(std::string target) {
  HttpAnswer answer;
  if (target == "/healthz" || target == "/metrics") {
    const auto engine = current_.get();
    const EngineStatus status = co_await on(engine->executor(), status_of(engine));
    if (target == "/metrics") {
      answer.body = format_metrics(status);
    } else {
      nlohmann::json json{{"status", "ok"},           {"phase", status.phase},
                          {"run", status.run_key},    {"model", status.model},
                          {"round", status.round},    {"rounds", status.rounds_total},
                          {"clients", status.clients}};
      answer.body = json_text(json) + "\n";
    }
  } else if (target == "/api/rounds") {
    auto read = [](Store& store) { return store.summary(std::nullopt); };
    answer = page_of(co_await store_.ask(std::move(read)));
  } else if (target == "/api/choices") {
    auto read = [](Store& store) { return store.codecs_asked(std::nullopt); };
    answer = page_of(co_await store_.ask(std::move(read)));
  } else {
    answer.status = 404;
    answer.body = "{\"error\": \"there are /healthz, /metrics, /api/rounds and /api/choices\"}\n";
  }
  co_return answer;
}

}  // namespace fl
