// SPDX-License-Identifier: Apache-2.0
// A picker combines sampler, over-selection and codec ladder. It is deterministic.
#include "server/cohort/picker.hpp"

#include <doctest/doctest.h>

#include <set>

namespace fl::test {

using namespace fl::server;
namespace {

const Layout& layout() {
  static const Layout made = Layout::make({{"w", {100, 100}}}).value();
  return made;
}

std::vector<Candidate> crowd(const Picker& picker, int count) {
  std::vector<Candidate> all;
  for (int i = 0; i < count; ++i) all.push_back(picker.candidate("c" + std::to_string(i), 10));
  return all;
}

TEST_CASE("a picker picks the same clients for the same round, and others for another round") {
  const Picker picker({.ladder = {"none"}, .sampling = "uniform", .seed = 5}, layout());
  const auto names = [&](Round round, std::uint64_t already) {
    std::set<std::string> found;
    for (const auto& task : picker.pick(crowd(picker, 50), 10, round, already)) {
      CHECK(task.round == round);
      CHECK(task.examples == 10);
      CHECK(task.codec == "none");
      found.insert(task.client);
    }
    return found;
  };
  CHECK(names(3, 0).size() == 10);
  CHECK(names(3, 0) == names(3, 0));
  CHECK(names(3, 0) != names(4, 0));
  CHECK(names(3, 0) != names(3, 10));  // Replacements in the same round.
}

TEST_CASE("a picker picks at most all clients") {
  const Picker picker({.ladder = {"none"}, .sampling = "uniform"}, layout());
  CHECK(picker.pick(crowd(picker, 3), 10, 1, 0).size() == 3);
  CHECK(picker.pick({}, 10, 1, 0).empty());
}

TEST_CASE("a cohort is larger than its target by the given factor") {
  const Picker plain({.ladder = {"none"}, .sampling = "uniform"}, layout());
  CHECK(plain.cohort_size(10, crowd(plain, 20)) == 10);
  const Picker more({.ladder = {"none"}, .sampling = "uniform", .over_select = 1.25}, layout());
  CHECK(more.cohort_size(10, crowd(more, 20)) == 13);
}

TEST_CASE("a picker says whether it needs histories, and the sampler gets them") {
  const Picker plain({.ladder = {"none"}, .sampling = "uniform"}, layout());
  CHECK_FALSE(plain.needs_histories());
  CHECK(Picker({.ladder = {"none"}, .sampling = "oort"}, layout()).needs_histories());
  CHECK(Picker({.ladder = {"none", "kbit:4"}, .sampling = "uniform"}, layout()).needs_histories());
  Picker adapts({.ladder = {"none"}, .sampling = "uniform", .over_select = 0}, layout());
  CHECK(adapts.needs_histories());
  ClientHistory history;
  history.last_round = 7;
  adapts.set_histories({{"c1", history}});
  CHECK(adapts.candidate("c1", 10).history.last_round == 7);
  CHECK(adapts.candidate("c2", 10).history.last_round == 0);
}

}  // namespace
}  // namespace fl::test
