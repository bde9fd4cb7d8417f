// SPDX-License-Identifier: Apache-2.0
// The names by which both ends agree on features.
#include "shared/wire/features.hpp"

#include "shared/base/limits.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace fl::test {
namespace {

wire::Hello hello_with(const std::vector<std::string>& names) {
  wire::Hello hello;
  hello.mutable_features();
  for (const std::string& name : names) hello.mutable_features()->add_names(name);
  return hello;
}

std::vector<std::string> names_of(const Features& features) {
  const wire::Features list = features.to_wire();
  return {list.names().begin(), list.names().end()};
}

TEST_CASE("both ends offer what the table says, under names that may be sent") {
  CHECK(names_of(Features::of(End::client)) == std::vector<std::string>{"evaluation", "summaries",
                                                                        "notices", "clip-norm",
                                                                        "secure-aggregation"});
  CHECK(names_of(Features::of(End::server)) == std::vector<std::string>{"evaluation", "renewal"});
  CHECK(Features::read(hello_with(names_of(Features::of(End::client)))).value() ==
        Features::of(End::client));
}

TEST_CASE("a list reads as it was written, and unknown names mean nothing") {
  wire::Welcome welcome;
  *welcome.mutable_features() = Features::of(End::server).to_wire();
  welcome.mutable_features()->add_names("of-the-future");
  CHECK(Features::read(welcome).value() == Features::of(End::server));
  CHECK(Features::read(hello_with({"unknown"})).value() == Features());
}

TEST_CASE(
    "an end without a list has what was there before lists, and one with an empty list none") {
  const Features old = Features::read(wire::Hello()).value();
  CHECK(names_of(old) == std::vector<std::string>{"evaluation", "summaries"});
  const Features old_server = Features::read(wire::Welcome()).value();
  CHECK(names_of(old_server) == std::vector<std::string>{"evaluation", "renewal"});
  CHECK(Features::read(hello_with({})).value() == Features());
}

TEST_CASE("lists that are too long and names that are none break the protocol") {
  const std::vector<std::string> most(limits::features_max, "x");
  CHECK(Features::read(hello_with(most)));
  std::vector<std::string> more = most;
  more.emplace_back("x");
  CHECK(Features::read(hello_with(more)).error().code() == Errc::protocol);
  CHECK(Features::read(hello_with({std::string(limits::feature_name_bytes_max, 'x')})));
  for (const std::string& name :
       {std::string(limits::feature_name_bytes_max + 1, 'x'), std::string(), std::string("Renewal"),
        std::string("a b"), std::string("\x1b[2J")}) {
    const auto read = Features::read(hello_with({name}));
    REQUIRE(!read);
    CHECK(read.error().code() == Errc::protocol);
    CHECK(read.error().message().find('\x1b') == std::string::npos);
  }
}

TEST_CASE("a demand is met by an end that has the feature, and names it where it is missing") {
  const Features all = Features::of(End::client);
  CHECK(demand(all, End::client, Feature::summaries, "this run"));
  const Features some = all.without(Feature::summaries);
  CHECK(some.has(Feature::evaluation));
  const auto refused = demand(some, End::client, Feature::summaries, "this run");
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::invalid_input);
  CHECK(refused.error().message().starts_with(
      "this run needs the feature 'summaries', which this client lacks ("));
}

}  // namespace
}  // namespace fl::test
