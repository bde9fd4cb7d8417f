// SPDX-License-Identifier: Apache-2.0
#include "shared/base/log.hpp"
#include "shared/base/json.hpp"
#include "tests/support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>

namespace fl::test {
namespace {

/// The text that `work` writes to standard error.
template <class Work>
std::string errors_of(Work work) {
  const TemporaryFolder folder;
  const auto path = folder / "err";
  std::fflush(stderr);
  const int saved = ::dup(STDERR_FILENO);
  const int file = ::open(path.c_str(), O_CREAT | O_RDWR, 0600);
  ::dup2(file, STDERR_FILENO);
  ::close(file);
  work();
  std::fflush(stderr);
  ::dup2(saved, STDERR_FILENO);
  ::close(saved);
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

const std::string evil =
    "\x1b]0;owned\x07\xc2\x9b"
    "2J\n2026 all is well\xff\xed\xa0\x80\xe2\x80\xae";

}  // namespace

TEST_CASE("a peer's text can't forge lines of the log or control the terminal") {
  const std::string text = errors_of([] {
    start_log(false, false);
    log_warn("the server says {}", evil);
    log_fatal("fl-client", evil);
  });
  CHECK(text.find("?]0;owned??2J?2026 all is well?????") != std::string::npos);
  CHECK(text.find("fl-client: ?]0;owned??2J?2026 all is well?????\n") != std::string::npos);
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
  CHECK(text.find_first_of("\x1b\x07\x9b\xff\xed") == std::string::npos);
}

TEST_CASE("the times in the log are UTC, whatever the time zone is") {
  const char* const before = std::getenv("TZ");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("TZ", "XYZ-5:30", 1);
  ::tzset();
  const std::time_t now = std::time(nullptr);
  const std::string text = errors_of([] {
    start_log(false, false);
    log_warn("now");
  });
  before == nullptr ? ::unsetenv("TZ") : ::setenv("TZ", kept.c_str(), 1);
  ::tzset();
  std::tm told{};
  const char* const rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &told);
  REQUIRE(rest != nullptr);
  CHECK(std::abs(std::difftime(::timegm(&told), now)) < 60);
  CHECK(std::string(rest).find("+00:00 warning now\n") == 4);  // After the milliseconds.
}

TEST_CASE("each line of a JSON log is valid JSON, whatever a peer sends") {
  const std::string text = errors_of([] {
    start_log(true, false);
    log_warn("the server says {}", evil);
    log_fatal("fl-client", evil);
    start_log(false, false);
  });
  std::size_t lines = 0;
  for (std::size_t at = 0, end = 0; at < text.size(); at = end + 1, ++lines) {
    end = text.find('\n', at);
    REQUIRE(end != std::string::npos);
    const auto line = parse_json(std::string_view(text).substr(at, end - at));
    REQUIRE(line.is_object());
    CHECK(line["message"].get<std::string>().find("all is well") != std::string::npos);
  }
  CHECK(lines == 2);
  CHECK(text.find("\\u001b]0;owned\\u0007\\u009b2J\\u000a") != std::string::npos);
  CHECK(text.find("\\ufffd\\ufffd\\ufffd\\ufffd\\u202e") != std::string::npos);
}

}  // namespace fl::test
