// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/partition.hpp"
#include "client/learn/data/random.hpp"
#include "tests/support/guide_table.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

constexpr std::uint32_t classes = 10;
using Parts = std::vector<std::vector<std::uint32_t>>;

std::vector<std::uint32_t> balanced_labels(std::size_t n) {
  std::vector<std::uint32_t> labels(n);
  for (std::size_t i = 0; i < n; ++i) labels[i] = static_cast<std::uint32_t>(i * 7 % classes);
  return labels;
}

fl::PartitionSpec spec_of(std::string_view text) { return fl::parse_partition(text).value(); }

std::array<std::size_t, classes> histogram(const std::vector<std::uint32_t>& part,
                                           const std::vector<std::uint32_t>& labels) {
  std::array<std::size_t, classes> counts{};
  for (const std::uint32_t i : part) ++counts.at(labels.at(i));
  return counts;
}

fl::Result<Parts> divide(const fl::PartitionSpec& spec, const std::vector<std::uint32_t>& labels,
                         std::uint32_t class_count, std::uint32_t parties, std::uint64_t seed) {
  return fl::partition(spec,
                       {.examples = static_cast<std::uint32_t>(labels.size()),
                        .labels = labels,
                        .classes = class_count},
                       parties, seed);
}

// The number of parts that contain each example.
std::vector<int> owners(const Parts& parts, std::size_t examples) {
  std::vector<int> count(examples, 0);
  for (const auto& part : parts) {
    for (const std::uint32_t i : part) ++count.at(i);
  }
  return count;
}

void expect_error(const fl::Result<Parts>& parts, std::string_view words) {
  REQUIRE(parts.has_error());
  CAPTURE(parts.error().message());
  CHECK(parts.error().code() == fl::Errc::invalid_input);
  CHECK(parts.error().message().find(words) != std::string::npos);
}

}  // namespace

// Tries every kind of partition with many numbers of parties and many seeds: parts are disjoint, no
// party is empty, and only another seed gives another partition.
TEST_CASE("every example belongs to exactly one party") {
  const auto labels = balanced_labels(6007);
  for (const std::string_view text :
       {"iid", "dirichlet:0.5", "dirichlet:0.3", "dirichlet:100", "dirichlet:1e6", "labels:1",
        "labels:2", "labels:3", "labels:10"}) {
    for (const std::uint32_t parties : {1u, 2u, 10u, 13u, 20u}) {
      for (std::uint64_t seed = 0; seed < 5; ++seed) {
        CAPTURE(text);
        CAPTURE(parties);
        CAPTURE(seed);
        const auto parts = divide(spec_of(text), labels, classes, parties, seed);
        REQUIRE(parts.has_value());
        REQUIRE(parts->size() == parties);
        CHECK(std::ranges::none_of(*parts, &std::vector<std::uint32_t>::empty));
        // Only a class that no party drew may be missing; then all its examples are missing.
        std::set<std::uint32_t> dropped;
        const auto count = owners(*parts, labels.size());
        for (std::size_t i = 0; i < count.size(); ++i) {
          if (count[i] == 0) dropped.insert(labels[i]);
        }
        CHECK(*std::ranges::max_element(count) == 1);
        const bool may_drop = text.starts_with("labels") && text != "labels:10" && parties < 10;
        CHECK((dropped.empty() || may_drop));
        for (std::size_t i = 0; i < count.size(); ++i) {
          REQUIRE((count[i] == 0) == dropped.contains(labels[i]));
        }
        CHECK(*parts == *divide(spec_of(text), labels, classes, parties, seed));
        CHECK(*parts != *divide(spec_of(text), labels, classes, parties, seed + 100));
      }
    }
  }
}

TEST_CASE("iid parts are equal in size") {
  const auto parts = divide(spec_of("iid"), balanced_labels(6007), classes, 10, 1).value();
  for (std::size_t p = 0; p < parts.size(); ++p) CHECK(parts[p].size() == (p < 7 ? 601 : 600));
}

// labels:K gives each party exactly K classes, the first of them its number modulo 10, and divides
// each class evenly among the parties that have it.
TEST_CASE("with labels:K each party has K classes") {
  const auto labels = balanced_labels(6000);
  for (const std::uint32_t k : {1u, 2u, 3u, 10u}) {
    const auto parts = divide(spec_of(fmt::format("labels:{}", k)), labels, classes, 20, 3).value();
    std::array<std::set<std::size_t>, classes> sizes;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const auto counts = histogram(parts[p], labels);
      CHECK(std::ranges::count_if(counts, [](auto n) { return n > 0; }) == k);
      CHECK(counts.at(p % classes) > 0);
      for (std::size_t c = 0; c < classes; ++c) {
        if (counts.at(c) > 0) sizes.at(c).insert(counts.at(c));
      }
    }
    for (const auto& of_class : sizes) CHECK(*of_class.rbegin() - *of_class.begin() <= 1);
  }
}

// The mean over parties and classes of |share - 1/n| falls with alpha, and is almost 0 for a huge
// alpha. Every party has at least the minimum, and is not too large, for every alpha.
TEST_CASE("dirichlet parts are more uneven for a small alpha") {
  const auto labels = balanced_labels(6000);
  constexpr std::uint32_t parties = 10;
  double before = 1e9;
  for (const double alpha : {0.1, 0.5, 5.0, 1e6}) {
    double unevenness = 0;
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      const auto parts =
          divide(spec_of(fmt::format("dirichlet:{}", alpha)), labels, classes, parties, seed)
              .value();
      for (const auto& part : parts) {
        CHECK(part.size() >= fl::dirichlet_party_examples_min);
        // A party that has 1/n of all examples gets no more, so it has less than 1/n plus a class.
        CHECK(part.size() < 600 + 600);
        for (const std::size_t n : histogram(part, labels)) {
          unevenness += std::abs(static_cast<double>(n) - 60.0);
        }
      }
    }
    CHECK(unevenness < before / 1.5);
    before = unevenness;
  }
  CHECK(before / (5 * parties * classes) < 2);
}

TEST_CASE("an impossible partition is an error that says why") {
  const auto labels = balanced_labels(95);
  expect_error(divide(spec_of("iid"), labels, classes, 0, 1), "0 parties");
  expect_error(divide(spec_of("iid"), labels, classes, 96, 1), "96 parties");
  expect_error(divide(spec_of("dirichlet:1"), labels, classes, 10, 1), "too few");
  // Each party needs almost an equal part of the examples, which so small an alpha never gives.
  expect_error(divide(spec_of("dirichlet:0.001"), labels, classes, 9, 1), "draws");
  expect_error(divide(spec_of("labels:11"), labels, classes, 5, 1), "only 10 labels");
  // All examples have label 0, so parties with other labels get none.
  expect_error(divide(spec_of("labels:1"), std::vector<std::uint32_t>(95, 0), classes, 20, 1),
               "would hold no example");
  CHECK(divide(spec_of("iid"), labels, classes, 95, 1).has_value());
}

namespace {

// Groups of these sizes, whose examples are mixed.
struct Groups {
  std::vector<std::uint32_t> of;  // The group of each example.
  std::uint32_t count;

  explicit Groups(const std::vector<std::uint32_t>& sizes)
      : count(static_cast<std::uint32_t>(sizes.size())) {
    for (std::uint32_t g = 0; g < sizes.size(); ++g) of.insert(of.end(), sizes[g], g);
    const auto order = fl::shuffled_indices(static_cast<std::uint32_t>(of.size()), 7, 0);
    std::vector<std::uint32_t> mixed;
    for (const std::uint32_t i : order) mixed.push_back(of[i]);
    of = mixed;
  }
  [[nodiscard]] fl::Result<Parts> divide(std::uint32_t parties, std::uint64_t seed = 0) const {
    const fl::PartitionInput input{
        .examples = static_cast<std::uint32_t>(of.size()), .groups = of, .group_count = count};
    return fl::partition(spec_of("by:site"), input, parties, seed);
  }
  // The groups of a part, which must be whole and in the order of the data set.
  [[nodiscard]] std::set<std::uint32_t> whole(const std::vector<std::uint32_t>& part) const {
    CHECK(std::ranges::is_sorted(part));
    std::set<std::uint32_t> groups;
    for (const std::uint32_t i : part) groups.insert(of[i]);
    const auto examples =
        std::ranges::count_if(of, [&](std::uint32_t group) { return groups.contains(group); });
    CHECK(static_cast<std::size_t>(examples) == part.size());
    return groups;
  }
};

}  // namespace

TEST_CASE("by: as many parties as groups hold one group each, in their order") {
  const Groups groups({5, 1, 9, 3});
  const Parts parts = groups.divide(4).value();
  for (std::uint32_t p = 0; p < 4; ++p) CHECK(groups.whole(parts[p]) == std::set<std::uint32_t>{p});
  CHECK(parts == groups.divide(4, 99).value());  // Nothing is drawn.
}

TEST_CASE("by: fewer parties get the largest group first, each to the one with the fewest") {
  // 9 to party 1, 8 to party 2, 4 to party 3; 3 to party 3, now 7; 3 to party 3 again, now 10; 1 to
  // party 2, now 9.
  const Groups groups({3, 9, 1, 8, 3, 4});
  const Parts parts = groups.divide(3).value();
  CHECK(groups.whole(parts[0]) == std::set<std::uint32_t>{1});
  CHECK(groups.whole(parts[1]) == std::set<std::uint32_t>{2, 3});
  CHECK(groups.whole(parts[2]) == std::set<std::uint32_t>{0, 4, 5});
}

TEST_CASE(
    "by: whatever the sizes, groups stay whole, all examples are given, and no party has none") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    fl::Random random(seed, 3);
    std::vector<std::uint32_t> sizes(1 + random.below(30));
    for (std::uint32_t& size : sizes) size = 1 + random.below(1 + random.below(200));
    const Groups groups(sizes);
    const auto largest = std::ranges::max(sizes);
    for (std::uint32_t parties = 1; parties <= groups.count; ++parties) {
      CAPTURE(seed);
      CAPTURE(parties);
      const Parts parts = groups.divide(parties).value();
      REQUIRE(parts.size() == parties);
      std::set<std::uint32_t> seen;
      std::size_t least = SIZE_MAX;
      std::size_t most = 0;
      for (const auto& part : parts) {
        const auto held = groups.whole(part);
        for (const std::uint32_t group : held) CHECK(seen.insert(group).second);
        least = std::min(least, part.size());
        most = std::max(most, part.size());
      }
      CHECK(seen.size() == groups.count);
      CHECK(least > 0);
      // As nobody with more than the fewest is given another, the sizes differ by one group at
      // most.
      if (parties < groups.count) CHECK(most - least <= largest);
    }
  }
}

TEST_CASE("by: more parties than groups, and data without groups or labels, are errors") {
  const Groups groups({4, 4, 4});
  expect_error(groups.divide(5), "by:site: 5 parties can't share 3 groups");
  const fl::PartitionInput plain{.examples = 30};
  expect_error(fl::partition(spec_of("by:site"), plain, 3, 0), "no groups");
  expect_error(fl::partition(spec_of("labels:2"), plain, 3, 0), "no classes");
  expect_error(fl::partition(spec_of("dirichlet:1"), plain, 3, 0), "no classes");
  CHECK(fl::partition(spec_of("iid"), plain, 3, 0).has_value());
}

TEST_CASE("a partition is read from a file, and errors name the file and the party") {
  const fl::test::TemporaryFolder folder;
  const auto path = folder / "parts.json";
  const auto labels = balanced_labels(6);
  const auto read = [&](std::string_view text) {
    std::ofstream(path) << text;
    return divide(spec_of("file:" + path.string()), labels, classes, 2, 1);
  };
  CHECK(read("[[5, 0], [2]]").value() == Parts{{5, 0}, {2}});  // Example 3 is left out.
  struct Refused {
    std::string text;
    std::string why;
  };
  for (const Refused& refused : std::vector<Refused>{
           {"[[0], [1], [2]]", "array of 2 arrays"},
           {"{}", "array of 2 arrays"},
           {"[[0], [1]", "array of 2 arrays"},
           {"[[0], []]", "party 2: must be an array"},
           {"[[0], 1]", "party 2: must be an array"},
           {"[[0], [6]]", "party 2: 6 is not an example number from 0 to 5"},
           {"[[0], [-1]]", "party 2: -1 is not an example number"},
           {"[[0.5], [1]]", "party 1: 0.5 is not an example number"},
           {"[[0, 1], [2, 1]]", "party 2: example 1 already belongs to party 1"}}) {
    CAPTURE(refused.text);
    expect_error(read(refused.text), refused.why);
    expect_error(read(refused.text), path.string());
  }
  std::filesystem::remove(path);
  const auto gone = divide(spec_of("file:" + path.string()), labels, classes, 2, 1);
  REQUIRE(gone.has_error());
  CHECK(gone.error().code() == fl::Errc::not_found);
  CHECK(gone.error().message().find(path.string()) != std::string::npos);
}

TEST_CASE("the guide has the divisions of the table") {
  std::vector<std::string> told;
  for (const auto& cells : fl::test::guide_table("guide/data.md", "| partition |"))
    told.push_back(fl::test::quoted_in(cells.at(0)).at(0));
  std::vector<std::string> usages;
  for (const fl::PartitionRow& row : fl::partition_rows()) usages.emplace_back(row.usage);
  CHECK(told == usages);
}

TEST_CASE("partition specs are parsed, and wrong ones refused") {
  std::set<std::string_view> names;
  const std::string unknown = fl::parse_partition("quantity:1").error().message();
  for (const fl::PartitionRow& row : fl::partition_rows()) {
    CAPTURE(row.usage);
    CHECK(names.insert(row.name()).second);
    CHECK(unknown.find(row.usage) != std::string::npos);
    const std::string argument = row.read == nullptr ? "" : ":1";
    CHECK(spec_of(std::string(row.name()) + argument).row == &row);
    CHECK((row.usage == row.name()) == (row.read == nullptr));
  }
  CHECK(spec_of("dirichlet:0.5").alpha == 0.5);
  CHECK(spec_of("labels:2").labels_per_party == 2);
  CHECK(spec_of("by:a b:c").row->name() == "by");
  CHECK(spec_of("by:a b:c").column == "a b:c");
  for (const std::string_view text : {"",
                                      "IID",
                                      "iid:1",
                                      "dirichlet",
                                      "dirichlet:",
                                      "dirichlet:0",
                                      "dirichlet:-1",
                                      "dirichlet:nan",
                                      "dirichlet:inf",
                                      "dirichlet:1e7",
                                      "dirichlet:1e-300",
                                      "dirichlet:1x",
                                      "file:",
                                      "by:",
                                      "by",
                                      "labels:",
                                      "labels:0",
                                      "labels:-1",
                                      "labels:1.5",
                                      "labels:99999999999",
                                      "quantity:1"}) {
    CAPTURE(text);
    const auto spec = fl::parse_partition(text);
    REQUIRE(spec.has_error());
    CHECK(spec.error().message().find('"' + std::string(text) + '"') != std::string::npos);
  }
}
