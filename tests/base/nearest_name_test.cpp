// SPDX-License-Identifier: Apache-2.0
#include "shared/base/spec/nearest_name.hpp"

#include "shared/base/spec/spec_options.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <string>

namespace fl::test {

TEST_CASE("a word that is nearly a name is suggested, and nothing else") {
  const std::vector<std::string_view> names{"lenet", "linear", "logistic", "transformer", "mlp"};
  CHECK(did_you_mean("lenett", names) == "; did you mean lenet?");
  CHECK(did_you_mean("lnear", names) == "; did you mean linear?");
  CHECK(did_you_mean("trasnformer", names) == "; did you mean transformer?");
  CHECK(did_you_mean("mpl", names).empty());  // Two letters of three are other ones.
  CHECK(did_you_mean("mlpx", names) == "; did you mean mlp?");
  CHECK(did_you_mean("", names).empty());
  CHECK(did_you_mean("bert", names).empty());
  CHECK(did_you_mean("lenet", {}).empty());
  CHECK(did_you_mean(std::string(100, 'm'), names).empty());
}

TEST_CASE("options of a spec, and words that they take, are suggested too") {
  const auto error_of = [](std::string_view spec) {
    auto options = SpecOptions::parse(spec).value();
    options.number("momentum", 0.5, 0, 1);
    options.word("order", {"ascending", "random"});
    const auto result = options.finish();
    return result ? std::string() : result.error().message();
  };
  CHECK(error_of("x:momentum=0.1").empty());
  CHECK(error_of("x:momentun=0.1") ==
        "'x:momentun=0.1': x has no option 'momentun'; it has: momentum order; did you mean "
        "momentum?");
  CHECK(error_of("x:order=randon").ends_with("one of: ascending random; did you mean random?"));
}

TEST_CASE("a spec has a limit that only a mistake meets, and its error shows the beginning") {
  const std::string many = "x:personal=" + std::string(5000, '*');
  auto options = SpecOptions::parse(many);
  REQUIRE(options);
  CHECK(options->text("personal").size() == 5000);
  const auto wrong = SpecOptions::parse(many + ",y=1").value().finish();
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().message().size() < 700);
  CHECK(SpecOptions::parse(std::string(70'000, 'x')).error().message().find("the limit is 65536") !=
        std::string::npos);
}

}  // namespace fl::test
