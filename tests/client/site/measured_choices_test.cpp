// SPDX-License-Identifier: Apache-2.0
#include "client/site/measured_choices.hpp"

#include "tests/support/mem_files.hpp"

#include <doctest/doctest.h>

#include <string>

namespace fl::test {

using namespace fl::site;
namespace {

const std::filesystem::path path = "/state/ranks/measured.json";

KeptChoices opened(MemFiles& files) { return KeptChoices::open(files, path).value(); }

}  // namespace

TEST_CASE("the first choice is kept, also after a power cut, and others beside it") {
  MemFiles files;
  REQUIRE(files.make_folder("/state").has_value());
  {
    KeptChoices kept = opened(files);
    CHECK(kept.all().empty());
    REQUIRE(kept.add({{"a", "1"}}).has_value());
    REQUIRE(kept.add({{"a", "2"}, {"b", "3"}}).has_value());
    CHECK((kept.all() == MeasuredChoices{{"a", "1"}, {"b", "3"}}));
  }
  files.crash(1);
  KeptChoices again = opened(files);
  CHECK((again.all() == MeasuredChoices{{"a", "1"}, {"b", "3"}}));
  REQUIRE(files.remove(path).has_value());
  REQUIRE(again.add({{"b", "4"}}).has_value());  // Nothing is new, so nothing is written.
  CHECK_FALSE(files.exists(path));
}

TEST_CASE("a damaged file of choices is an error that names it, and nothing is half read") {
  MemFiles files;
  REQUIRE(files.make_folder("/state").has_value());
  REQUIRE(files.make_folder("/state/ranks").has_value());
  for (const std::string wrong : {"", "{", "[]", "{\"a\": 1}", "{\"a\": \"1\", \"b\": null}"}) {
    CAPTURE(wrong);
    REQUIRE(files.write_atomically(path, bytes_of(std::string_view(wrong))).has_value());
    const auto kept = KeptChoices::open(files, path);
    REQUIRE(kept.has_error());
    CHECK(kept.error().code() == Errc::corrupt);
    CHECK(kept.error().message().find(path.string() + ": the file is damaged: remove it") !=
          std::string::npos);
  }
}

}  // namespace fl::test
