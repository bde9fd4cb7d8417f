// SPDX-License-Identifier: Apache-2.0
// The dashboard's files as the program has them: nothing from elsewhere, nothing that the pages'
// Content-Security-Policy forbids, and no text that could become markup.
#include "server/admin/web_files.hpp"
#include "server/history/rows.hpp"
#include "tests/support/guide_table.hpp"

#include <doctest/doctest.h>

#include <regex>
#include <set>
#include <string>
#include <string_view>

namespace fl::test {

using namespace fl::server;
namespace {

std::set<std::string> found_in(const std::string& text, const std::string& pattern) {
  std::set<std::string> found;
  const std::regex expression(pattern);
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at)
    found.insert((*at)[1].str());
  return found;
}

bool is_script(const WebFile& file) { return file.type.starts_with("text/javascript"); }

}  // namespace

TEST_CASE("every file that a file of the dashboard names is there, and each is named") {
  std::set<std::string> named{"/index.html"};
  for (const WebFile& file : web_files()) {
    const std::string text(file.bytes);
    for (const std::string& name : found_in(text, R"((?:href|src)="([a-z_]+\.[a-z]+)\")"))
      named.insert("/" + name);
    for (const std::string& name : found_in(text, R"(from "\./([a-z_]+\.js)\")"))
      named.insert("/" + name);
  }
  std::set<std::string> there;
  for (const WebFile& file : web_files()) there.insert(std::string(file.path));
  CHECK(named == there);
}

TEST_CASE("all scripts are begun to be loaded together, not one after the other") {
  const auto loaded = found_in(std::string(find_web_file("/")->bytes), R"(href="([a-z]+\.js)\")");
  for (const WebFile& file : web_files()) {
    CAPTURE(file.path);
    if (is_script(file) && file.path != "/app.js")
      CHECK(loaded.contains(std::string(file.path.substr(1))));
  }
}

TEST_CASE("every view that all readers have is in the list of kinds and in the guide") {
  const std::string app(find_web_file("/app.js")->bytes);
  const auto begin = app.find("const kinds = [");
  REQUIRE(begin != app.npos);
  const auto kinds = found_in(app.substr(begin, app.find("];", begin) - begin), R"(\b([A-Z]\w+))");
  std::set<std::string> told;
  for (const Cells& cells : guide_table("guide/dashboard.md", "| view |")) told.insert(cells.at(0));
  std::set<std::string> shown;
  for (const WebFile& file : web_files()) {
    const std::string text(file.bytes);
    const auto titles = found_in(text, R"x(\n  title = "([^"]+)")x");
    if (titles.empty()) continue;
    CAPTURE(file.path);
    CHECK(titles.size() == 1);
    const bool is_control = file.path == "/control.js";  // Operators alone have it.
    CHECK(told.contains(*titles.begin()) != is_control);
    for (const std::string& name : found_in(text, R"(export class (\w+))"))
      if (kinds.contains(name)) shown.insert(name);
  }
  CHECK(shown == kinds);
  CHECK(told.size() == kinds.size());
}

TEST_CASE("the log can be cut down to each level and kind that the history has") {
  const std::string text(find_web_file("/log.js")->bytes);
  const auto choices = [&text](const std::string& id) {
    const auto begin = text.find("select(\"" + id + "\"");
    REQUIRE(begin != text.npos);
    return found_in(text.substr(begin, text.find("again);", begin) - begin), R"x(\["([a-z]+)"\])x");
  };
  std::set<std::string> kinds;
  for (const std::string_view kind : audit_kind_names()) kinds.emplace(kind);
  CHECK(choices("log-kind") == kinds);
  CHECK(choices("log-level") == std::set<std::string>{"error", "info", "notice", "warning"});
  for (const std::string& level : choices("log-level")) CHECK(event_level_of(level).has_value());
}

TEST_CASE("nothing comes from another place, and nothing stands inline") {
  for (const WebFile& file : web_files()) {
    CAPTURE(file.path);
    std::string text(file.bytes);
    // The names of XML's dialects are not places.
    for (const std::string& name : {std::string("http://www.w3.org/2000/svg")}) {
      for (auto at = text.find(name); at != text.npos; at = text.find(name))
        text.erase(at, name.size());
    }
    CHECK(text.find("http:") == std::string::npos);
    CHECK(text.find("https:") == std::string::npos);
    CHECK(text.find("@import") == std::string::npos);
  }
  const std::string page(find_web_file("/")->bytes);
  CHECK(found_in(page, R"(<(style)\b)").empty());
  CHECK(found_in(page, R"(\s((?:on[a-z]+|style)=))").empty());
  CHECK(found_in(page, R"((<script[^>]*>[^<]))").empty());
}

TEST_CASE("no script makes markup or code of a text") {
  for (const WebFile& file : web_files()) {
    if (!is_script(file)) continue;
    CAPTURE(file.path);
    const std::string text(file.bytes);
    for (const char* word : {".innerHTML", ".outerHTML", "insertAdjacentHTML", "document.write",
                             "eval(", "new Function", "DOMParser", "createContextualFragment"}) {
      CAPTURE(word);
      CHECK(text.find(word) == std::string::npos);
    }
  }
}

}  // namespace fl::test
