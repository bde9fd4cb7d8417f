// SPDX-License-Identifier: Apache-2.0
// Which rank has which elements of a model whose layers are divided between ranks.
#include "client/learn/tensor_parts.hpp"

#include "shared/params/model_table.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace fl::test {
namespace {

const std::string dense = "transformer:layers=2,width=16,heads=4,context=8,vocab=32";
const std::string experts = dense + ",experts=4";

std::int64_t elements_of(const std::vector<Piece>& pieces) {
  std::int64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.count;
  return sum;
}

/// How often each element of a model is in these pieces.
void count(const std::vector<Piece>& pieces, std::vector<int>& counts) {
  for (const Piece& piece : pieces)
    for (std::int64_t i = 0; i < piece.count; ++i)
      ++counts.at(static_cast<std::size_t>(piece.begin + i));
}

/// The elements of the model that a rank has of a tensor, in its order.
std::vector<std::int64_t> elements_of(const std::string& tensor, const Layout& layout,
                                      const TensorDivision& division, std::int64_t rank) {
  std::vector<std::int64_t> found;
  for (const Layout::Tensor& one : layout.tensors()) {
    if (one.name != tensor) continue;
    const auto offset = static_cast<std::int64_t>(one.offset);
    for (const Piece& piece : part_of_model(layout, {.tensors = division}, {.tensor = rank}).pieces)
      for (std::int64_t i = piece.begin; i < piece.begin + piece.count; ++i)
        if (i >= offset && i < offset + static_cast<std::int64_t>(one.elements))
          found.push_back(i - offset);
  }
  return found;
}

std::vector<std::int64_t> numbers(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(end - begin));
  std::iota(all.begin(), all.end(), begin);
  return all;
}

}  // namespace

TEST_CASE("each element of a model is on a rank, and owned by one") {
  for (const std::string& model : {dense, experts}) {
    for (const std::int64_t ranks : {2, 4}) {
      CAPTURE(model);
      CAPTURE(ranks);
      const Layout layout = builtin_layout(model).value();
      std::vector<int> there(layout.elements());
      std::vector<int> owned(layout.elements());
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const LayersPart part =
            part_of_model(layout, {.tensors = {.ranks = ranks}}, {.tensor = rank});
        count(part.pieces, there);
        count(part.owned, owned);
        CHECK(part.summed.empty());
        std::int64_t at = 0;
        for (const Piece& piece : part.pieces) {
          CHECK(piece.at == at);
          at += piece.count;
        }
        std::int64_t wanted = 0;
        for (const Layout::Tensor& tensor : layout.tensors()) {
          const auto shape = part_shape(tensor, {.tensors = {.ranks = ranks}});
          wanted += std::accumulate(shape.begin(), shape.end(), std::int64_t{1},
                                    [](auto a, auto b) { return a * b; });
        }
        CHECK(at == wanted);
      }
      CHECK(owned == std::vector<int>(layout.elements(), 1));
      for (const Layout::Tensor& tensor : layout.tensors()) {
        const bool is_cut = part_shape(tensor, {.tensors = {.ranks = ranks}}) != tensor.shape;
        CHECK(there[tensor.offset] == (is_cut ? 1 : ranks));
      }
    }
  }
}

TEST_CASE("a rank has the experts of its number, which other ranks may divide in turn") {
  const Layout layout = builtin_layout(experts).value();
  for (const std::int64_t ranks : {2, 4}) {
    for (const std::int64_t parts : {1, 2}) {
      CAPTURE(ranks);
      CAPTURE(parts);
      const LayersDivision division{.tensors = {.ranks = parts}, .experts = {.ranks = ranks}};
      CHECK(division.is_divided());
      std::vector<int> there(layout.elements());
      std::vector<int> owned(layout.elements());
      for (std::int64_t expert = 0; expert < ranks; ++expert) {
        for (std::int64_t tensor = 0; tensor < parts; ++tensor) {
          const LayersPart part =
              part_of_model(layout, division, {.tensor = tensor, .expert = expert});
          count(part.pieces, there);
          count(part.owned, owned);
        }
      }
      for (const Layout::Tensor& tensor : layout.tensors()) {
        CAPTURE(tensor.name);
        const bool is_expert = is_of_experts(tensor.name);
        const bool is_cut = part_shape(tensor, {.tensors = {.ranks = parts}}) != tensor.shape;
        for (std::size_t i = tensor.offset; i < tensor.offset + tensor.elements; ++i) {
          const auto copies = (is_expert ? 1 : ranks) * (is_cut ? 1 : parts);
          REQUIRE(there[i] == copies);
          REQUIRE(owned[i] == (is_expert ? 1 : ranks));
        }
        const auto shape = part_shape(tensor, {.experts = {.ranks = ranks}});
        CHECK(shape[0] == tensor.shape[0] / (is_expert ? ranks : 1));
      }
    }
  }
  const LayersPart last = part_of_model(layout, {.experts = {.ranks = 2}}, {.expert = 1});
  for (const Layout::Tensor& tensor : layout.tensors()) {
    if (tensor.name != "block2.experts.fc1.weight") continue;  // [4, 64, 16]
    std::vector<int> counts(layout.elements());
    count(last.pieces, counts);
    CHECK(counts[tensor.offset + 2 * 64 * 16 - 1] == 0);
    CHECK(counts[tensor.offset + 2 * 64 * 16] == 1);
  }
}

TEST_CASE("a rank has whole heads of queries, keys and values, and columns of what follows") {
  const Layout layout = builtin_layout(dense).value();
  const TensorDivision two{.ranks = 2};
  // attention.bias: 16 queries, 16 keys, 16 values.
  std::vector<std::int64_t> wanted = numbers(8, 16);
  for (const auto& [begin, end] : {std::pair(24, 32), std::pair(40, 48)}) {
    const auto more = numbers(begin, end);
    wanted.insert(wanted.end(), more.begin(), more.end());
  }
  CHECK(elements_of("block1.attention.bias", layout, two, 1) == wanted);
  const auto columns = elements_of("block2.fc2.weight", layout, two, 1);  // [16, 64]
  REQUIRE(columns.size() == 16 * 32);
  CHECK(std::vector(columns.begin(), columns.begin() + 32) == numbers(32, 64));
  CHECK(std::vector(columns.begin() + 32, columns.begin() + 64) == numbers(96, 128));
  CHECK(elements_of("tokens.weight", layout, two, 0) == numbers(0, 16 * 16));
  CHECK(elements_of("block1.fc2.bias", layout, two, 1) == numbers(0, 16));
}

TEST_CASE("with divided tokens ranks add up what belongs to tokens, and nothing else") {
  const Layout layout = builtin_layout(experts).value();
  const auto summed =
      part_of_model(layout, {.tensors = {.ranks = 2, .divides_tokens = true}}, {.tensor = 1})
          .summed;
  std::vector<int> counts(layout.elements());
  count(summed, counts);
  for (const Layout::Tensor& tensor : layout.tensors()) {
    const std::string& name = tensor.name;
    const bool is_norm = name.find("norm") != std::string::npos;
    const bool is_bias = name.ends_with("projection.bias") || name == "positions.weight";
    CAPTURE(name);
    CHECK(counts[tensor.offset] == (is_norm || is_bias ? 1 : 0));
  }
}

TEST_CASE("a part of a part lies where both say") {
  const std::vector<Piece> outer{{100, 10, 0}, {300, 5, 10}, {400, 5, 20}};  // Nothing at 15 to 19.
  CHECK(within(outer, {{0, 25, 0}}) == outer);
  CHECK(within(outer, {{8, 4, 50}}) == std::vector<Piece>{{108, 2, 50}, {300, 2, 52}});
  CHECK(within(outer, {{12, 10, 0}}) == std::vector<Piece>{{302, 3, 0}, {400, 2, 8}});
  CHECK(within(outer, {{15, 5, 0}}).empty());
  CHECK(within(outer, {{2, 2, 0}, {21, 1, 2}}) == std::vector<Piece>{{102, 2, 0}, {401, 1, 2}});
  CHECK(within({}, {{0, 5, 0}}).empty());
  CHECK(narrowed(outer, 9, 3) == std::vector<Piece>{{109, 1, 0}, {300, 2, 1}});
  CHECK(elements_of(narrowed(outer, 0, 25)) == 20);
}

TEST_CASE("a model that can't be divided is refused with the number that does not fit") {
  const auto refusal = [](const std::string& model, const TensorDivision& division) {
    const auto checked = check_division(parse_model(model).value(), model, division);
    return checked ? std::string() : checked.error().message();
  };
  CHECK(refusal(dense, {.ranks = 4, .divides_tokens = true}).empty());
  CHECK(refusal("lenet", {.ranks = 1}).empty());
  CHECK(refusal("lenet", {.ranks = 2}) ==
        "--parallel tp=2 can't divide model lenet: only the layers of a transformer are divided; "
        "--zero divides any model");
  CHECK(refusal(dense, {.ranks = 3}).ends_with("its 4 heads are no multiple of 3"));
  CHECK(refusal("transformer:layers=1,width=16,heads=4,context=8,vocab=33", {.ranks = 2})
            .find("its vocabulary of 33 is no multiple of 2") != std::string::npos);
  CHECK(refusal("transformer:layers=1,width=16,heads=4,context=9",
                {.ranks = 2, .divides_tokens = true})
            .find("its context of 9 tokens") != std::string::npos);
  CHECK(refusal("transformer:layers=1,width=16,heads=4,context=9", {.ranks = 2}).empty());
}

}  // namespace fl::test
