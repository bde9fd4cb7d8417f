// SPDX-License-Identifier: Apache-2.0
// The admin pages on a real port, with an engine that has no clients, for tests that ask as a
// browser does.
#pragma once

#include "server/admin/http_server.hpp"
#include "shared/base/log.hpp"
#include "tests/server/history/records.hpp"
#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace fl::test {

using namespace fl::server;

class AdminWorld {
 public:
  using tcp = net::ip::tcp;

  /// `fill` gets the history, with its one run of this model, before the pages are served.
  explicit AdminWorld(Admin::Options options = {},
                      const std::function<void(Store&, RunId)>& fill = nullptr,
                      const std::string& model = "cnn") {
    set_log_level(LogLevel::off);
    const auto path = temp / "history.sqlite";
    store_ = Store::open({.path = path}).value();
    RunRecord run = some_run();
    run.model = model;
    run = store_->runs().create(run).value();
    if (fill) fill(*store_, run.id);
    run = store_->runs().find(run.id).value().value();
    RunSettings settings;
    settings.codec = "none";
    const auto strand = net::make_strand(io_);
    engines_.emplace(std::make_shared<RoundEngine>(
        strand, settings, run, Layout::make({{"w", {4}}}).value(), posix_files(), *store_,
        RoundEngine::Shared{&workers_, &workers_},
        RunFiles::Paths{temp / "checkpoints", temp / "spool", temp / "references",
                        temp / "kept-updates"}));
    auto door = AdminDoor::open(io_, "127.0.0.1:0").value();
    host = door.place();
    options.state = temp.path();
    calls_.emplace(strand, *store_, workers_, 0, StoreThread::Hooks{[](const Error&) {}},
                   std::make_shared<StoreThread::Pause>());
    options.metrics = Metrics::open(path, *calls_, false).value();
    options.setting_form = [](Store&) { return Result<std::string>(R"({"settings": []})"); };
    admin_.emplace(io_, *engines_, AdminHistory::open(path).value(), std::move(door),
                   ControlStore::open(path).value(), std::vector<ControlAction>(),
                   std::move(options), probes_);
    admin_->start();
    for (int i = 0; i < 2; ++i) crew_.emplace_back([this] { io_.run(); });
  }
  ~AdminWorld() {
    admin_->close();
    io_.stop();
    crew_.clear();
    admin_.reset();
  }

  /// `from`: an address of this machine.
  [[nodiscard]] tcp::socket connect(const char* from = "127.0.0.1") {
    tcp::socket socket(client_);
    socket.open(tcp::v4());
    socket.bind({net::ip::make_address(from), 0});
    const auto port = static_cast<std::uint16_t>(std::stoi(host.substr(host.find(':') + 1)));
    socket.connect({net::ip::make_address("127.0.0.1"), port});
    return socket;
  }

  /// The whole answer. `more`: headers, each with CRLF.
  std::string ask(std::string_view first_line, std::string_view more = "",
                  std::string_view body = "") {
    auto socket = connect();
    send(socket, first_line, more, body);
    std::string answer;
    boost::system::error_code ec;
    net::read(socket, net::dynamic_buffer(answer), ec);
    return answer;
  }
  std::string get(const std::string& target, std::string_view more = "") {
    return ask("GET " + target + " HTTP/1.1", more);
  }
  std::string post(const std::string& target, std::string_view body, std::string_view more = "") {
    return ask("POST " + target + " HTTP/1.1",
               std::string("Content-Type: application/json\r\n") + std::string(more), body);
  }

  void send(tcp::socket& socket, std::string_view first_line, std::string_view more = "",
            std::string_view body = "") {
    const std::string text =
        std::string(first_line) + "\r\n" +
        (more.find("Host:") == more.npos ? "Host: " + host + "\r\n" : "") + std::string(more) +
        (body.empty() ? "" : "Content-Length: " + std::to_string(body.size()) + "\r\n") + "\r\n" +
        std::string(body);
    net::write(socket, net::buffer(text));
  }

  /// Reads until the text is there; "" if the stream ends before.
  static std::string read_until(tcp::socket& socket, std::string_view text) {
    std::string come;
    std::array<char, 4096> room;
    while (come.find(text) == come.npos) {
      boost::system::error_code ec;
      const auto bytes = socket.read_some(net::buffer(room), ec);
      if (ec) return "";
      come.append(room.data(), bytes);
    }
    return come;
  }

  TemporaryFolder temp;
  std::string host;  // "127.0.0.1:40123".
  [[nodiscard]] Store& store() { return *store_; }
  [[nodiscard]] Admin& admin() { return *admin_; }
  [[nodiscard]] Probes& probes() { return probes_; }

 private:
  net::io_context io_;
  net::io_context client_;
  Pulse pulse_{net::make_strand(io_), {}};
  Probes probes_{pulse_};
  std::unique_ptr<Store> store_;
  Offload workers_;
  std::optional<Engines> engines_;
  std::optional<StoreThread> calls_;
  std::optional<Admin> admin_;
  std::vector<std::jthread> crew_;
};

inline unsigned status_of_answer(const std::string& answer) {
  return answer.size() < 12 ? 0 : static_cast<unsigned>(std::stoul(answer.substr(9, 3)));
}

/// The value of a header of the answer; "" if it has none.
inline std::string header_of(const std::string& answer, const std::string& name) {
  const auto end = answer.find("\r\n\r\n");
  const auto at = answer.find("\r\n" + name + ": ");
  if (at == answer.npos || at > end) return "";
  const auto begin = at + name.size() + 4;
  return answer.substr(begin, answer.find("\r\n", begin) - begin);
}

inline std::string body_of(const std::string& answer) {
  const auto end = answer.find("\r\n\r\n");
  return end == answer.npos ? "" : answer.substr(end + 4);
}

}  // namespace fl::test
