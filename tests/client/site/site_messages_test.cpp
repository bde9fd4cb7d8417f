// SPDX-License-Identifier: Apache-2.0
// The messages of a site's agent and its ranks: lines, JSON objects, limits.
#include "client/site/site_messages.hpp"

#include "client/learn/process/json_line.hpp"
#include "client/learn/process/tcp.hpp"
#include "tests/support/train_settings.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>

namespace fl::test {

using namespace fl::site;
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

constexpr auto line_patience = 20s;

TimePoint line_deadline() { return Clock::now() + line_patience; }

TEST_CASE("a message is one JSON object on a line, and the reader names who sends another") {
  auto listener = TcpListener::make("127.0.0.1", 0).value();
  SocketLine sender(connect_tcp("127.0.0.1", listener.port(), line_deadline()).value(),
                    "the reader");
  SocketLine reader(listener.accept(line_patience), "the writer");
  const json message{{"type", "said"}, {"text", "two\nlines"}, {"whole", 3}, {"big", ~0ULL}};
  CHECK(send_json(sender, message, line_deadline()));
  CHECK(receive_json(reader, line_patience).value() == message);
  CHECK(receive_json(reader, 0s).value() == std::nullopt);
  for (const char* wrong : {"[1]", "3", "{\"a\":", ""}) {
    CAPTURE(std::string(wrong));
    CHECK(sender.send(wrong, line_deadline()));
    const auto read = receive_json(reader, line_patience);
    REQUIRE(read.has_error());
    CHECK(read.error().code() == Errc::invalid_input);
    CHECK(read.error().message().starts_with("the writer sent a line that is not a JSON object"));
  }
  CHECK(send_json(sender, {{"text", std::string(100, 'a')}}, line_deadline()));
  CHECK(receive_json(reader, line_patience, 100).error().code() == Errc::too_large);

  CHECK(member_text(message, "text") == "two\nlines");
  CHECK(member_text(message, "whole").empty());
  CHECK(member_number(message, "whole") == 3);
  CHECK(member_number(message, "nosuch") == 0);
  CHECK(member_integer(message, "whole") == 3);
  CHECK_FALSE(member_integer(message, "big"));
}

TEST_CASE("a line is read up to its limit, and nothing behind it is lost") {
  auto listener = TcpListener::make("127.0.0.1", 0).value();
  SocketLine sender(connect_tcp("127.0.0.1", listener.port(), line_deadline()).value(),
                    "the reader");
  SocketLine reader(listener.accept(line_patience), "the writer");
  const std::string most(100, 'a');
  CHECK(sender.send(most + "\nshort\n" + most + "b", line_deadline()));
  CHECK(reader.receive(line_patience, 100).value() == most);
  CHECK(reader.receive(line_patience, 100).value() == "short");
  const auto longer = reader.receive(line_patience, 100);
  REQUIRE(!longer.has_value());
  CHECK(longer.error().code() == Errc::too_large);
  CHECK(longer.error().message() == "the writer sent a line of more than 100 bytes");
}

TEST_CASE("what agent and ranks tell each other arrives as it was") {
  const TrainSettings settings = unusual_settings();
  const RankWork work{.run = "abc", .settings = settings, .has_correction = true, .files = {"w"}};
  const auto again = parse_as<RankWork>(parse_json(json_text(to_json_of(work)))).value();
  CHECK(again.settings == settings);
  CHECK(again.files.weights == "w");
  CHECK(again.has_correction);

  for_each_train_field([&](const auto& row) {
    json message = to_json_of(work);
    message.at("settings").erase(row.name);
    const auto lacking = parse_as<RankWork>(message);
    REQUIRE(lacking.has_error());
    CHECK(lacking.error().message().find(fmt::format("'{}'", row.name)) != std::string::npos);
  });

  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  const EvalReport report{.examples = 3, .loss = infinite, .metrics = {{"auroc", nan, 2}}};
  const auto told = parse_as<EvalReport>(parse_json(json_text(to_json_of(report)))).value();
  CHECK(told.loss == infinite);
  CHECK(std::isnan(told.metrics.at(0).value));
  RankLoaded loaded{.layout = "ab", .train = 5, .holdout = 2, .summaries = {{5, 1.5, infinite}}};
  const auto summary = parse_as<RankLoaded>(parse_json(json_text(to_json_of(loaded)))).value();
  CHECK(summary.summaries == loaded.summaries);

  const auto wrong = parse_as<RankLoaded>(json{{"layout", 3}});
  CHECK(wrong.error().code() == Errc::protocol);
}

}  // namespace
}  // namespace fl::test
