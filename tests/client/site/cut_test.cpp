// SPDX-License-Identifier: Apache-2.0
// Which rank has which elements: each element of a model is one rank's.
#include "client/site/rank/shards/cut.hpp"  // libtorch before doctest: both have CHECK.

#include <doctest/doctest.h>

#include <vector>

namespace fl::test {

using namespace fl::site;

TEST_CASE("each element of a model is one rank's, at a place of its own") {
  const std::vector<std::vector<Extent>> models{{{0, 1}},
                                                {{0, 10}, {10, 3}, {13, 8}},
                                                {{0, 100}, {100, 1}, {101, 64}, {165, 7}},
                                                {{0, 0}, {0, 5}}};
  for (const auto& units : models) {
    const std::int64_t all = units.back().begin + units.back().count;
    for (const std::int64_t ranks : {1, 2, 3, 4, 8, 16}) {
      CAPTURE(all);
      CAPTURE(ranks);
      const auto cuts = cut_units(units, ranks);
      std::vector<int> owners(static_cast<std::size_t>(all), 0);
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        std::vector<int> places(static_cast<std::size_t>(elements_of(cuts)), 0);
        for (const Piece& piece : pieces_of(cuts, rank)) {
          CHECK(piece.count > 0);
          for (std::int64_t i = 0; i < piece.count; ++i) {
            ++owners.at(static_cast<std::size_t>(piece.begin + i));
            ++places.at(static_cast<std::size_t>(piece.at + i));
          }
        }
        for (const int used : places) CHECK(used <= 1);
      }
      for (const int count : owners) CHECK(count == 1);
      // A rank has at most one element of filling for each unit and rank.
      CHECK(elements_of(cuts) * ranks < all + static_cast<std::int64_t>(units.size()) * ranks);
    }
  }
}

TEST_CASE("a unit's parts lie in the order of the ranks, and the last ones may be filling") {
  const std::vector<Extent> units{{0, 10}, {10, 2}};
  const auto cuts = cut_units(units, 4);
  CHECK((pieces_of(cuts, 0) == std::vector<Piece>{{0, 3, 0}, {10, 1, 3}}));
  CHECK((pieces_of(cuts, 1) == std::vector<Piece>{{3, 3, 0}, {11, 1, 3}}));
  CHECK((pieces_of(cuts, 2) == std::vector<Piece>{{6, 3, 0}}));
  CHECK((pieces_of(cuts, 3) == std::vector<Piece>{{9, 1, 0}}));
  CHECK(elements_of(cuts) == 4);
}

TEST_CASE("experts are divided over the ranks that have the same ones") {
  // Ranks 0 and 2 have the first experts, ranks 1 and 3 others, in the same place of theirs.
  const std::vector<Extent> units{{0, 8}, {8, 6, 2}, {14, 4}};
  const auto cuts = cut_units(units, 4);
  CHECK((pieces_of(cuts, 0) == std::vector<Piece>{{0, 2, 0}, {8, 3, 2}, {14, 1, 5}}));
  CHECK((pieces_of(cuts, 1) == std::vector<Piece>{{2, 2, 0}, {8, 3, 2}, {15, 1, 5}}));
  CHECK((pieces_of(cuts, 2) == std::vector<Piece>{{4, 2, 0}, {11, 3, 2}, {16, 1, 5}}));
  CHECK((pieces_of(cuts, 3) == std::vector<Piece>{{6, 2, 0}, {11, 3, 2}, {17, 1, 5}}));
}

TEST_CASE("parts travel in the formats of their tensors, each element once and in its place") {
  using enum NumberFormat;
  const std::vector<ReadTensor> tensors = {{5, fp32}, {7, bf16}, {1, bf16}, {4, fp32}, {3, fp16}};
  const Extent unit{.begin = 100, .count = 20};
  for (const std::int64_t ranks : {1, 2, 3, 4, 7, 16, 25}) {
    CAPTURE(ranks);
    const UnitCut cut = cut_units({&unit, 1}, ranks).front();
    std::vector<int> owned(20, 0);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      std::int64_t at = 0;
      for (const Segment& one : segments_of(cut, tensors, rank)) {
        const std::int64_t size = one.format == fp32 ? 4 : 2;
        CHECK(at % size == 0);
        at += one.count * size;
        CHECK(one.begin >= rank * cut.part);
        CHECK(one.begin + one.count <= (rank + 1) * cut.part);
        for (std::int64_t i = one.begin; i < one.begin + one.count; ++i) {
          ++owned[static_cast<std::size_t>(i)];
          const NumberFormat wanted = i < 5 ? fp32 : i < 13 ? bf16 : i < 17 ? fp32 : fp16;
          CHECK(static_cast<int>(one.format) == static_cast<int>(wanted));
        }
      }
      CHECK(at == bytes_of(segments_of(cut, tensors, rank)));
    }
    CHECK(owned == std::vector<int>(20, 1));
  }
  const UnitCut whole = cut_units({&unit, 1}, 1).front();
  CHECK((segments_of(whole, tensors, 0) ==
         std::vector<Segment>{{0, 5, fp32}, {13, 4, fp32}, {5, 8, bf16}, {17, 3, fp16}}));
}

}  // namespace fl::test
