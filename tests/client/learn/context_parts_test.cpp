// SPDX-License-Identifier: Apache-2.0
#include "client/learn/context_parts.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace fl {
namespace {

using Places = std::vector<std::int64_t>;

/// The products of queries and keys that a rank computes with a causal mask, by chunks: one with
/// itself counts as half of one with an earlier one.
std::int64_t work_of(const ContextDivision& division, std::int64_t rank) {
  std::int64_t work = 0;
  for (const std::int64_t mine : chunks_of(division, rank)) work += 2 * mine + 1;
  return work;
}

std::string refusal_of(const std::string& model, const ContextDivision& texts,
                       const TensorDivision& layers = {}) {
  const auto checked = check_context(parse_model(model).value(), model, texts, layers);
  return checked ? "" : checked.error().message();
}

}  // namespace

TEST_CASE("a rank has an early and a late part of a text, or with ulysses one part") {
  CHECK(places_of({.ranks = 2}, 0, 8) == Places{0, 1, 6, 7});
  CHECK(places_of({.ranks = 2}, 1, 8) == Places{2, 3, 4, 5});
  CHECK(places_of({.ranks = 2, .way = ContextWay::gather}, 1, 8) == Places{2, 3, 4, 5});
  CHECK(places_of({.ranks = 2, .way = ContextWay::ulysses}, 1, 8) == Places{4, 5, 6, 7});
  for (const ContextWay way : {ContextWay::ring, ContextWay::gather, ContextWay::ulysses}) {
    for (const std::int64_t ranks : {1, 2, 3, 4, 8}) {
      CAPTURE(ranks);
      Places all;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const Places own = places_of({ranks, way}, rank, 48);
        CHECK(own.size() == 48U / static_cast<std::size_t>(ranks));
        CHECK(std::ranges::is_sorted(own));  // So a text's order is that of a rank's tokens.
        all.insert(all.end(), own.begin(), own.end());
      }
      std::ranges::sort(all);
      for (std::int64_t place = 0; place < 48; ++place)
        CHECK(all[static_cast<std::size_t>(place)] == place);
    }
  }
}

TEST_CASE("in a ring all ranks have as much work") {
  for (const std::int64_t ranks : {2, 3, 4, 8})
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      CHECK(work_of({.ranks = ranks}, rank) == work_of({.ranks = ranks}, 0));
}

TEST_CASE("a context that can't be divided is refused with the number that does not fit") {
  const std::string model = "transformer:layers=1,width=8,heads=4,context=24";
  CHECK(refusal_of(model, {.ranks = 4}).empty());
  CHECK(refusal_of(model, {.ranks = 5, .way = ContextWay::ulysses}) ==
        "--parallel cp=5 can't divide model " + model +
            ": its context of 24 tokens is no multiple of 5");
  CHECK(refusal_of(model, {.ranks = 8}) ==
        "--parallel cp=8 can't divide model " + model +
            ": its context of 24 tokens is no multiple of 16, as each rank has two parts of it");
  CHECK(refusal_of(model, {.ranks = 8, .way = ContextWay::ulysses})
            .ends_with("ulysses divides its 4 heads, which are no multiple of 8"));
  CHECK(refusal_of(model, {.ranks = 2, .way = ContextWay::ulysses}, {.ranks = 4})
            .ends_with("its 4 heads, which are no multiple of 8"));
  CHECK(refusal_of(model, {.ranks = 2}, {.ranks = 4}).empty());
  CHECK(refusal_of(model, {.ranks = 4}, {.ranks = 4, .divides_tokens = true})
            .ends_with("a rank's 6 tokens once more, which are no multiple of tp=4"));
  CHECK(
      refusal_of("lenet", {.ranks = 2})
          .ends_with("only the texts of a transformer are divided; dp divides the batches of any"));
  CHECK(refusal_of("lenet", {}).empty());
  CHECK(parse_context_way("ring").value() == ContextWay::ring);
  CHECK(parse_context_way("ulysses").value() == ContextWay::ulysses);
  CHECK(parse_context_way("rings").error().message() ==
        "'rings' is none of ring, gather and ulysses");
}

}  // namespace fl
