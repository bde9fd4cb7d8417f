// SPDX-License-Identifier: Apache-2.0
// Logins at the admin pages, and their cookies.
#include "server/admin/sessions.hpp"
#include "shared/base/limits.hpp"
#include "tests/support/print_result.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>

#include <doctest/doctest.h>

#include <set>
#include <string>

namespace fl::test {

using namespace fl::server;
namespace {

/// Lets this much simulated time pass.
void pass(SimulatedTime& time, Duration duration) {
  net::io_context io;
  net::co_spawn(io, sleep_for(duration), net::detached);
  while (time.step(io)) io.restart();
}

}  // namespace

TEST_CASE("a cookie finds its own session, until that is closed or its time is over") {
  SimulatedTime time;
  AdminSessions sessions;
  const std::string ann = sessions.open("ann").value();
  const std::string bob = sessions.open("bob").value();
  CHECK(ann.size() == 43);  // 32 bytes in base64url.
  CHECK(sessions.find(ann).value().key == "ann");
  CHECK(sessions.find(bob).value().key == "bob");
  for (const std::string& wrong : {std::string(), ann.substr(1), ann + "A", std::string(43, 'A')})
    CHECK(!sessions.find(wrong));
  sessions.close(bob);
  CHECK(!sessions.find(bob));
  sessions.close(bob);
  CHECK(sessions.size() == 1);

  pass(time, limits::admin_session_max - std::chrono::seconds(1));
  CHECK(sessions.find(ann));
  pass(time, std::chrono::seconds(1));
  CHECK(!sessions.find(ann));
  sessions.open("").value();
  CHECK(sessions.size() == 1);
}

TEST_CASE("no two cookies are the same") {
  AdminSessions sessions;
  std::set<std::string> seen;
  for (std::size_t i = 0; i < limits::admin_sessions_max; ++i)
    seen.insert(sessions.open("ann").value());
  CHECK(seen.size() == limits::admin_sessions_max);
}

TEST_CASE(
    "when all places are taken, a login ends the oldest one with the same token and no other") {
  SimulatedTime time;
  AdminSessions sessions;
  const std::string first = sessions.open("ann").value();
  pass(time, std::chrono::seconds(1));
  const std::string second = sessions.open("ann").value();
  for (std::size_t i = 2; i < limits::admin_sessions_max; ++i) sessions.open("bob").value();
  const auto none = sessions.open("eve");
  REQUIRE(!none);
  CHECK(none.error().code() == Errc::unavailable);
  CHECK(sessions.open("ann"));
  CHECK(!sessions.find(first));
  CHECK(sessions.find(second));
  CHECK(sessions.size() == limits::admin_sessions_max);
  sessions.close_all_of("bob");
  CHECK(sessions.size() == 2);
}

TEST_CASE("cookies are found by their whole name") {
  CHECK(find_cookie("a=1; tributary_session=x-_9; b=2", "tributary_session") == "x-_9");
  CHECK(find_cookie("tributary_session=x", "tributary_session") == "x");
  CHECK(find_cookie("tributary_session=a=b", "tributary_session") == "a=b");
  for (const char* none : {"", ";", "tributary_session", "xtributary_session=1", "=1", "a=1;;",
                           "TRIBUTARY_SESSION=1", "tributary_session =1"}) {
    CAPTURE(none);
    CHECK(find_cookie(none, "tributary_session").empty());
  }
}

TEST_CASE("a session's cookie is hidden from scripts and from other web pages") {
  const std::string cookie = session_cookie("abc", false);
  CHECK(cookie == "tributary_session=abc; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict");
  CHECK(session_cookie("abc", true) == cookie + "; Secure");
  CHECK(session_cookie("", false).find("=; Path=/; Max-Age=0;") != std::string::npos);
}

TEST_CASE("roles have names, and only those") {
  for (const AdminRole role : {AdminRole::viewer, AdminRole::run_operator, AdminRole::admin})
    CHECK(parse_admin_role(to_text(role)) == role);
  CHECK(to_text(AdminRole::run_operator) == "operator");
  CHECK(!parse_admin_role("root"));
  CHECK(!parse_admin_role(""));
}

}  // namespace fl::test
