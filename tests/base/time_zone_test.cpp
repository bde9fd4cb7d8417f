// SPDX-License-Identifier: Apache-2.0
#include "shared/base/time_zone.hpp"

#include "tests/support/print_result.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/variables.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace fl::test {

namespace {

Result<void> checked(const Variables& variables, const std::filesystem::path& zones) {
  return check_time_zone(environment_of(variables), zones);
}

}  // namespace

TEST_CASE("a zone that the C library does not know is an error that says what to do") {
  const TemporaryFolder folder;
  const auto zones = folder / "zoneinfo";
  const auto error_of = [&](const std::string& zone) {
    const auto result = checked({{"TZ", zone}}, zones);
    return result ? std::string() : result.error().message();
  };
  CHECK(checked({}, zones));
  for (const char* zone :
       {"", "UTC", ":UTC", "UTC0", "GMT", "Etc/UTC", "CET-1CEST", "XYZ-5:30",
        "CET-1CEST,M3.5.0,M10.5.0/3", "<+0330>-3:30", "EST5EDT4,M3.2.0,M11.1.0"}) {
    CAPTURE(std::string(zone));
    CHECK(error_of(zone).empty());
  }
  CHECK(error_of("Europe/Berlin").find("install tzdata") != std::string::npos);

  std::filesystem::create_directories(zones / "Europe");
  std::ofstream(zones / "Europe/Berlin") << "TZif2 and so on";
  std::ofstream(zones / "tzdata.zi") << "# version 2026";
  CHECK(error_of("Europe/Berlin").empty());
  CHECK(error_of(":Europe/Berlin").empty());
  CHECK(error_of((zones / "Europe/Berlin").string()).empty());
  CHECK(error_of("Europe/Berln")
            .find("TZ is 'Europe/Berln', which is no time zone in " + zones.string()) !=
        std::string::npos);
  for (const char* zone :
       {"CET", "Europe", "tzdata.zi", "+1", "CET-1,M3", "C-1", "../../etc/passwd"}) {
    CAPTURE(std::string(zone));
    CHECK(!error_of(zone).empty());
  }
  const Variables elsewhere{{"TZ", "Berlin"}, {"TZDIR", (zones / "Europe").string()}};
  CHECK(checked(elsewhere, "/nonesuch"));
}

TEST_CASE("the local time is told with its distance from UTC") {
  const char* const before = std::getenv("TZ");
  const std::string kept = before == nullptr ? "" : before;
  const auto told = [](const char* zone) {
    ::setenv("TZ", zone, 1);
    ::tzset();
    return local_time_text(1'764'000'000);  // 16:00 in UTC.
  };
  CHECK(told("UTC0") == "16:00, UTC+00:00");
  CHECK(told("XYZ-5:30") == "21:30, UTC+05:30");
  CHECK(told("XYZ3:30") == "12:30, UTC-03:30");
  before == nullptr ? ::unsetenv("TZ") : ::setenv("TZ", kept.c_str(), 1);
  ::tzset();
}

}  // namespace fl::test
