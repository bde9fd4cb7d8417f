// SPDX-License-Identifier: Apache-2.0
// What a collector's answers mean: which are tried again, and when.
#include "server/traces/otlp_answer.hpp"

#include "shared/base/limits.hpp"

#include <doctest/doctest.h>

namespace fl::test {

using namespace fl::server;
namespace {

using Kind = OtlpVerdict::Kind;

OtlpVerdict judged(unsigned status, std::string retry_after = "", std::string body = "") {
  HttpClient::Answer answer;
  answer.status = status;
  answer.retry_after = std::move(retry_after);
  answer.body = std::move(body);
  return judge_answer(answer, 784111777);  // Sun, 06 Nov 1994 08:49:37 GMT.
}

TEST_CASE("only four statuses are tried again") {
  for (const unsigned status : {200U, 202U, 204U}) CHECK(judged(status).kind == Kind::taken);
  for (const unsigned status : {429U, 502U, 503U, 504U}) CHECK(judged(status).kind == Kind::later);
  for (const unsigned status : {301U, 400U, 401U, 404U, 413U, 415U, 500U, 501U})
    CHECK(judged(status).kind == Kind::refused);
}

TEST_CASE("Retry-After is a number of seconds or a date, and nothing else") {
  const auto pause = [](const char* text) { return seconds(judged(503, text).pause); };
  CHECK(pause("") == 0);
  CHECK(pause("7") == 7);
  CHECK(pause("Sun, 06 Nov 1994 08:49:57 GMT") == 20);
  CHECK(pause("Sun, 06 Nov 1994 08:49:30 GMT") == 0);
  CHECK(pause("-7") == 0);
  CHECK(pause("7 s") == 0);
  CHECK(pause("99999999999999999999999") == 0);
  CHECK(pause("99999999999") == seconds(2 * limits::otlp_retry_max));
  CHECK(judged(200, "7").pause == Duration::zero());
  CHECK(judged(400, "7").pause == Duration::zero());
}

TEST_CASE("spans that were rejected from a request that was taken are counted") {
  const auto some =
      judged(200, "", R"({"partialSuccess": {"rejectedSpans": "3", "errorMessage": "too\nold"}})");
  CHECK(some.kind == Kind::taken);
  CHECK(some.spans_rejected == 3);
  CHECK(some.text == "too?old");
  CHECK(judged(200, "", R"({"partialSuccess": {"rejectedSpans": 2}})").spans_rejected == 2);
  for (const char* body : {"", "{}", "[]", "null", "no JSON", R"({"partialSuccess": 7})",
                           R"({"partialSuccess": {"rejectedSpans": -1}})",
                           R"({"partialSuccess": {"rejectedSpans": {}, "errorMessage": 1}})"}) {
    CAPTURE(body);
    CHECK(judged(200, "", body).spans_rejected == 0);
  }
}

TEST_CASE("the log has what the collector says, made safe and short") {
  CHECK(judged(400, "", R"({"code": 3, "message": "no such tenant"})").text ==
        "HTTP status 400: no such tenant");
  CHECK(judged(404, "", "not\x1b[31m here").text == "HTTP status 404: not?[31m here");
  CHECK(judged(503).text == "HTTP status 503");
  CHECK(judged(502, "", std::string(5000, 'x')).text.size() < 400);
}

}  // namespace
}  // namespace fl::test
