// SPDX-License-Identifier: Apache-2.0
#include "client/agent/requests.hpp"

#include "shared/base/limits.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <initializer_list>
#include <vector>

namespace fl::test {

using namespace fl::client;
namespace {

using client::Requests;

wire::Offer offer_of(std::int64_t task, std::uint32_t version = 0) {
  wire::Offer offer;
  offer.set_task(task);
  offer.set_version(version);
  return offer;
}

wire::Evaluate evaluation_of(std::uint32_t version) {
  wire::Evaluate evaluation;
  evaluation.set_version(version);
  return evaluation;
}

void add(Requests& requests, std::initializer_list<std::uint32_t> versions) {
  for (const std::uint32_t version : versions) requests.add(evaluation_of(version));
}

/// Takes out all versions that are to be evaluated.
std::vector<std::uint32_t> drain(Requests& requests) {
  std::vector<std::uint32_t> versions;
  for (; requests.has_evaluation(); requests.drop_evaluation())
    versions.push_back(requests.evaluation().version());
  return versions;
}

using Versions = std::vector<std::uint32_t>;

}  // namespace

TEST_CASE("a newer offer replaces the one before") {
  Requests requests;
  CHECK(!requests.offer());
  requests.keep(offer_of(1));
  requests.keep(offer_of(2));
  REQUIRE(requests.offer());
  CHECK(requests.offer()->task() == 2);
}

TEST_CASE("an offer is forgotten by its own task only") {
  Requests requests;
  requests.forget_offer(1);
  requests.keep(offer_of(2));
  requests.forget_offer(1);
  REQUIRE(requests.offer());
  requests.forget_offer(2);
  CHECK(!requests.offer());
}

TEST_CASE("every offer of a run gets the digest that only the first one has") {
  Requests requests;
  wire::Offer first = offer_of(1);
  first.set_initial_digest("the digest");
  REQUIRE(requests.complete(first));
  CHECK(first.initial_digest() == "the digest");
  for (const std::int64_t task : {2, 3}) {
    wire::Offer next = offer_of(task);
    REQUIRE(requests.complete(next));
    CHECK(next.initial_digest() == "the digest");
  }
  wire::Offer other = offer_of(4);
  other.set_initial_digest("another digest");
  REQUIRE(requests.complete(other));
  wire::Offer last = offer_of(5);
  REQUIRE(requests.complete(last));
  CHECK(last.initial_digest() == "another digest");
}

TEST_CASE("an offer with a text that is too long is refused, and its digest is not kept") {
  Requests requests;
  wire::Offer offer = offer_of(1);
  offer.set_initial_digest("the digest");
  std::string* text = nullptr;
  std::string name;
  SUBCASE("optimizer") {
    text = offer.mutable_optimizer();
    name = "optimizer";
  }
  SUBCASE("codec") {
    text = offer.mutable_codec();
    name = "codec";
  }
  text->assign(limits::spec_bytes_max + 1, 'x');
  const auto refused = requests.complete(offer);
  REQUIRE(!refused);
  CHECK(refused.error().code() == Errc::protocol);
  CHECK(refused.error().message() ==
        "the name of the server's " + name + " has 65537 bytes; the limit is 65536");
  wire::Offer next = offer_of(2);
  REQUIRE(requests.complete(next));
  CHECK(next.initial_digest().empty());

  text->pop_back();
  CHECK(requests.complete(offer));
}

TEST_CASE("versions are evaluated in the order of the requests, each once") {
  Requests requests;
  CHECK(!requests.has_evaluation());
  add(requests, {3, 4, 4, 3, 2, 7});
  CHECK(drain(requests) == Versions{3, 4, 7});
  add(requests, {4});  // It is asked again after it was done.
  CHECK(drain(requests) == Versions{4});
}

TEST_CASE("of more versions than the limit, the oldest are dropped") {
  Requests requests;
  constexpr std::uint32_t limit = limits::evaluations_asked_max;
  Versions newest;
  for (std::uint32_t version = 1; version <= limit + 5; ++version) {
    add(requests, {version});
    if (version > 5) newest.push_back(version);
  }
  CHECK(newest.size() == limit);
  CHECK(drain(requests) == newest);
}

TEST_CASE("a version that the server no longer has is neither evaluated nor trained from") {
  Requests requests;
  add(requests, {3, 4});
  requests.keep(offer_of(1, 4));
  requests.forget_version(3);
  CHECK(requests.offer());
  REQUIRE(requests.has_evaluation());
  CHECK(requests.evaluation().version() == 4);
  requests.forget_version(4);
  CHECK(!requests.offer());
  CHECK(!requests.has_evaluation());
  requests.forget_version(4);
}

TEST_CASE("nothing of a run is left in the next one") {
  Requests requests;
  wire::Offer offer = offer_of(1);
  offer.set_initial_digest("the digest");
  REQUIRE(requests.complete(offer));
  requests.keep(offer);
  add(requests, {3, 4});
  requests.clear();
  CHECK(!requests.offer());
  CHECK(!requests.has_evaluation());
  wire::Offer next = offer_of(1);
  REQUIRE(requests.complete(next));
  CHECK(next.initial_digest().empty());
}

}  // namespace fl::test
