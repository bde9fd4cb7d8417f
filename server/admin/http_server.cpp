// SPDX-License-Identifier: Apache-2.0
#include "server/admin/http_server.hpp"

#include "shared/base/async/clock.hpp"
#include "shared/base/json.hpp"
#include "shared/base/limits.hpp"
#include "shared/base/log.hpp"
#include "shared/identity/crypto.hpp"
#include "shared/net/server_address.hpp"

#include <boost/asio/strand.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace fl {

namespace {

constexpr auto pause_after_accept_error = std::chrono::milliseconds(100);

Awaitable<EngineStatus> status_of(std::shared_ptr<RoundEngine> engine) {
  co_return engine->status();
}

HttpAnswer refusal(unsigned status, std::string_view why) {
  return {status, json_text(nlohmann::json{{"error", std::string(why)}}) + "\n"};
}

/// The page's JSON, or why it could not be read.
HttpAnswer answer_of(Result<std::string> text) {
  if (!text) return refusal(503, text.error().message());
  return {200, std::move(*text)};
}

/// The host of "HOST", "HOST:PORT", "[IPv6]" or "[IPv6]:PORT".
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
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
  add("rounds_total", "gauge", "Rounds of the whole run.", status.rounds_total);
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
  for (const MetricFigure& figure : status.metrics)
    if (figure.name == "accuracy")
      add("accuracy", "gauge", "Newest evaluation's accuracy, 0 to 1.", figure.value);
  if (!status.metrics.empty())
    text +=
        "# HELP tributary_metric What evaluators measured of the newest version, by name.\n"
        "# TYPE tributary_metric gauge\n";
  for (const MetricFigure& figure : status.metrics)
    fmt::format_to(std::back_inserter(text), "tributary_metric{{name=\"{}\"}} {}\n", figure.name,
                   figure.value);
  return text;
}

std::string format_health(const EngineStatus& status) {
  nlohmann::json metrics = nlohmann::json::object();
  for (const MetricFigure& figure : status.metrics) metrics[figure.name] = figure.value;
  const nlohmann::json json{
      {"status", "ok"},          {"phase", status.phase}, {"run", status.run_key},
      {"model", status.model},   {"round", status.round}, {"rounds", status.rounds_total},
      {"metric", status.metric}, {"metrics", metrics},    {"clients", status.clients}};
  return json_text(json) + "\n";
}

bool is_host_allowed(std::string_view host, const std::vector<std::string>& names) {
  const std::string_view name = without_port(host);
  const auto is_it = [name](std::string_view allowed) {
    return std::ranges::equal(name, allowed, [](unsigned char a, unsigned char b) {
      return std::tolower(a) == std::tolower(b);
    });
  };
  return is_ip_address(name) || is_it("localhost") || std::ranges::any_of(names, is_it);
}

void Admin::start() { net::co_spawn(door_.executor(), accept(), rethrow); }

void Admin::close() {
  is_closed_ = true;
  net::post(door_.executor(), [this] { door_.close(); });
}

void Admin::change(Options options) {
  auto changed = std::make_shared<const Options>(std::move(options));
  const std::lock_guard lock(mutex_);
  options_ = std::move(changed);
}

std::shared_ptr<const Admin::Options> Admin::options() const {
  const std::lock_guard lock(mutex_);
  return options_;
}

Awaitable<void> Admin::accept() {
  while (!is_closed_) {
    net::any_io_executor strand = net::make_strand(io_);
    auto socket = co_await door_.accept(strand);
    if (is_closed_) co_return;
    if (!socket) {
      // Most likely there are no file descriptors left.
      log_warn("admin pages: accept: {}", socket.error().message());
      co_await sleep_for(pause_after_accept_error);
      continue;
    }
    if (requests_ >= limits::admin_requests_max) {
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
  if (co_await read_http(stream, request, 0)) co_return;
  const bool is_head = request.method() == http::verb::head;
  const HttpAnswer made = co_await answer(std::move(request));
  const bool is_text = !made.body.starts_with('{') && !made.body.starts_with('[');
  std::string text = http_answer(
      made.status, is_text ? "text/plain; version=0.0.4; charset=utf-8" : "application/json",
      is_head ? "" : made.body);
  stream.expires_after(limits::admin_request_max);
  co_await write_all(stream, std::move(text));
  beast::error_code ignored;
  stream.socket().shutdown(PlainSocket::shutdown_send, ignored);
}

Awaitable<HttpAnswer> Admin::answer(HttpRequest request) {
  // They say so little that they need no token, which a kubelet could not send.
  if (auto probed = probes_.answer(request.target())) co_return std::move(*probed);
  const auto options = this->options();
  const auto host = request[http::field::host];
  if (!is_host_allowed({host.data(), host.size()}, options->hosts)) {
    co_return refusal(421,
                      "the Host of this request is not one of this server's: use its IP address or "
                      "localhost, or start fl-server with --admin-host NAME");
  }
  const auto given = request[http::field::authorization];
  const std::string wanted = "Bearer " + options->token;
  if (!options->token.empty() &&
      !equal_in_constant_time(bytes_of(std::string_view(given.data(), given.size())),
                              bytes_of(std::string_view(wanted)))) {
    co_return refusal(401,
                      "these pages need 'Authorization: Bearer TOKEN' with the token of "
                      "--admin-token-file");
  }
  if (request.method() != http::verb::get && request.method() != http::verb::head)
    co_return refusal(405, "these pages are read-only");
  std::string target(request.target());
  co_return co_await page(std::move(target));
}

Awaitable<HttpAnswer> Admin::page(std::string target) {
  const auto mark = std::min(target.find('?'), target.size());
  const std::string_view path = std::string_view(target).substr(0, mark);
  const std::string_view query = std::string_view(target).substr(std::min(mark + 1, target.size()));
  if (path == "/healthz" || path == "/metrics") {
    const auto engine = current_.get();
    const EngineStatus status = co_await on(engine->executor(), status_of(engine));
    if (path == "/metrics") co_return HttpAnswer{200, format_metrics(status)};
    co_return HttpAnswer{200, format_health(status)};
  }
  const bool is_rounds = path == "/api/rounds";
  if (!is_rounds && path != "/api/choices")
    co_return refusal(
        404, "there are /healthz, /livez, /readyz, /metrics, /api/rounds and /api/choices");
  const auto asked = parse_page_query(
      query, is_rounds ? limits::admin_page_rounds_max : limits::admin_page_choices_max);
  if (!asked) co_return refusal(400, asked.error().message());
  if (is_rounds) {
    auto text = co_await history_->rounds(*asked);
    co_return answer_of(std::move(text));
  }
  auto text = co_await history_->choices(*asked);
  co_return answer_of(std::move(text));
}

}  // namespace fl
