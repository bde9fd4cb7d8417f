// SPDX-License-Identifier: Apache-2.0
// The small text of the live state, forecasts of transfers, and alerts.
#include "server/admin/pages/live_view.hpp"
#include "shared/base/json.hpp"

#include <doctest/doctest.h>

#include <string>

namespace fl::test {

using namespace fl::server;
namespace {

constexpr double some_time = 1.8e9;

LiveStatus collecting_live() {
  LiveStatus live;
  live.phase = Phase::collecting;
  live.status.run_key = "0123456789abcdef";
  live.status.clients = 5;
  live.status.asked = 5;
  live.quorum = 3;
  live.target = 5;
  return live;
}

HostFacts host_at(double now) {
  HostFacts host;
  host.now = now;
  return host;
}

TransferStatus upload(std::uint64_t bytes, std::uint64_t done, double seconds) {
  TransferStatus transfer;
  transfer.client = "site-1";
  transfer.is_up = true;
  transfer.bytes = bytes;
  transfer.done = done;
  transfer.seconds = seconds;
  return transfer;
}

TimePoint at(double seconds) {
  return TimePoint(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
}

}  // namespace

TEST_CASE("a transfer is forecast from its speed so far, without what was there before") {
  TransferStatus transfer = upload(1000, 600, 2);
  transfer.offset = 400;
  CHECK(forecast(transfer).per_s == 100);
  CHECK(forecast(transfer).left_s == 4);
  CHECK(!forecast(transfer).risk);  // There is no deadline.
  transfer.due_s = 100;
  CHECK(forecast(transfer).risk == Risk::none);
  transfer.due_s = 5;
  CHECK(forecast(transfer).risk == Risk::some);
  transfer.due_s = 3.9;
  CHECK(forecast(transfer).risk == Risk::late);
  transfer.due_s = -1;
  CHECK(forecast(transfer).risk == Risk::late);
  // Nothing has come: nothing is known.
  transfer.done = transfer.offset;
  CHECK(!forecast(transfer).left_s);
  CHECK(!forecast(transfer).risk);
}

TEST_CASE("the text does not change while only time passes") {
  LiveStatus live = collecting_live();
  live.due_s = 60.2;
  LiveView view;
  const std::string first = view.text(live, {}, host_at(some_time), at(1));
  live.due_s = 59.2;
  CHECK(view.text(live, {}, host_at(some_time + 1), at(2)) == first);
  CHECK(parse_json(first)["due_at"] == some_time + 60);
  live.status.accepted = 1;
  CHECK(view.text(live, {}, host_at(some_time + 1), at(3)) != first);
  CHECK(view.text(live, {.event = 1}, host_at(some_time + 1), at(4)) != first);
}

TEST_CASE("speeds come from two samples of one run") {
  LiveStatus live = collecting_live();
  LiveView view;
  const auto speed = [&](double seconds) {
    return parse_json(view.text(live, {}, host_at(some_time), at(seconds)))["up_per_s"]
        .get<double>();
  };
  CHECK(speed(1) == 0);
  live.status.bytes_up = 3000;
  CHECK(speed(2.5) == 2000);
  // Too soon to say: the last figure stays.
  live.status.bytes_up = 9000;
  CHECK(speed(2.6) == 2000);
  CHECK(speed(5.5) == 2000);
  // Nobody has looked for long.
  CHECK(speed(500) == 0);
  live.status.bytes_up = 10'000;
  live.status.run_key = "fedcba9876543210";
  CHECK(speed(501) == 0);
}

TEST_CASE("the text's size does not depend on the number of clients") {
  LiveStatus live = collecting_live();
  live.status.clients = 8000;
  live.activities[static_cast<std::size_t>(Activity::training)] = 8000;
  LiveView view;
  const std::string text = view.text(live, {}, host_at(some_time), at(1));
  CHECK(text.size() < 3000);
  CHECK(parse_json(text)["activities"]["training"] == 8000);
  CHECK(text.find('\n') == std::string::npos);  // A line break would end the message of a stream.
}

TEST_CASE("what a client is called can't break out of the text") {
  LiveStatus live = collecting_live();
  live.transfers.push_back(upload(10, 5, 1));
  live.transfers.back().client = "a\n\nevent: x\u2028\"<b>";
  LiveView view;
  const std::string text = view.text(live, {}, host_at(some_time), at(1));
  CHECK(text.find('\n') == std::string::npos);
  CHECK(parse_json(text)["transfers"][0]["client"] == live.transfers.back().client);
}

TEST_CASE("each thing that an operator should see makes an alert, the worst first") {
  const auto whats = [](const LiveStatus& live, const HostFacts& host) {
    std::string all;
    for (const Alert& alert : alerts_of(live, host)) {
      CHECK(!alert.remedy.empty());
      all += alert.what + "\n";
    }
    return all;
  };
  CHECK(whats(collecting_live(), host_at(some_time)).empty());
  LiveStatus live = collecting_live();
  live.phase = Phase::waiting_for_clients;
  live.min_clients = 7;
  live.status.clients = 1;
  CHECK(whats(live, host_at(some_time)) == "The run waits for 7 clients, and 1 is here\n");
  live.unfit = "site-1: the client trains 'cnn', this run trains 'lenet'";
  CHECK(whats(live, host_at(some_time)) ==
        "The run waits for 7 clients, and clients that come can't take part: site-1: the client "
        "trains 'cnn', this run trains 'lenet'\n");
  live.unfit = "site-1: the client has 300 examples, and site-1 was enrolled with at most 100: …";
  CHECK(whats(live, host_at(some_time)).find("300") == std::string::npos);
  CHECK(alerts_of(live, host_at(some_time)).front().remedy.find("--queue-patience") !=
        std::string::npos);
  live.phase = Phase::finished;
  CHECK(whats(live, host_at(some_time)).empty());
  live.status.present = 3;
  CHECK(whats(live, host_at(some_time)) == "No run goes on, and 3 members wait for one\n");

  live = collecting_live();
  live.status.clients = 1;
  live.status.asked = 3;
  live.refused = 2;
  live.absent = 1;
  live.activities[static_cast<std::size_t>(Activity::paused)] = 2;
  live.certificate_ends_at = some_time + 3 * 24 * 3600;
  live.certificate_of = "site-3";
  live.paused = "the disk is full";
  HostFacts host = host_at(some_time);
  host.transfers_at_risk = 2;
  host.disk_free = 100'000'000;
  host.disk_bytes = 100'000'000'000;
  CHECK(whats(live, host) ==
        "Nothing goes on: the disk is full\n"
        "The disk with the state is nearly full: 100 MB are free\n"
        "The round needs 3 updates, and only 1 can come\n"
        "2 of this round's updates were refused\n"
        "2 transfers will not be there in time\n"
        "2 clients missed too often and are not asked for a while\n"
        "The certificate of site-3 ends in 3 days\n"
        "1 client lost the connection\n");
  // A large part of a small disk, or much of a large one, is enough.
  host.disk_bytes = 1'000'000'000;
  CHECK(whats(live, host).find("nearly full") == std::string::npos);
}

TEST_CASE("a late transfer is one of the alerts of the text") {
  LiveStatus live = collecting_live();
  live.transfers.push_back(upload(1000, 10, 1));
  live.transfers.back().due_s = 5;
  live.transfers_total = 1;
  LiveView view;
  const auto json = parse_json(view.text(live, {}, host_at(some_time), at(1)));
  CHECK(json["transfers"][0]["risk"] == "late");
  CHECK(json["transfers"][0]["ends_at"] == some_time + 99);
  CHECK(json["alerts"][0]["what"] == "1 transfer will not be there in time");
}

}  // namespace fl::test
