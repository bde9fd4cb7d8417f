// SPDX-License-Identifier: Apache-2.0
// The table of remedies fits the texts of events, as the server's sources write them, and no event
// that asks for an operator is without one.
#include "server/admin/pages/remedies.hpp"
#include "tests/server/admin/server_sources.hpp"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <cctype>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace fl::test {

using namespace fl::server;
namespace {

/// A call that writes an event of the level warning or error, from there to its end.
struct Site {
  std::string code;  // With one space for any number.
  std::string text;  // String literals of the source.
};

Site site_at(const std::string& sources, std::size_t at) {
  Site site;
  bool is_literal = false;
  for (; at < sources.size() && (is_literal || sources[at] != ';'); ++at) {
    const char c = sources[at];
    if (is_literal && c == '\\')
      site.text += sources[++at];
    else if (c == '"')
      is_literal = !is_literal;
    else if (is_literal)
      site.text += c;
    else if (std::isspace(static_cast<unsigned char>(c)) == 0)
      site.code += c;
    else if (!site.code.empty() && site.code.back() != ' ')
      site.code += ' ';
  }
  return site;
}

std::vector<Site> find_sites(const std::string& sources) {
  std::vector<Site> sites;
  for (const std::string begin :
       {"EventLevel::warning,", "EventLevel::error,", "report_full_disk(", " note_refusal(\""}) {
    for (auto at = sources.find(begin); at != sources.npos; at = sources.find(begin, at + 1))
      sites.push_back(site_at(sources, at));
  }
  return sites;
}

/// Whether it says anything beside what is put into it.
bool has_words(std::string_view text) {
  bool is_inside = false;
  for (const char c : text) {
    if (c == '{') is_inside = true;
    if (!is_inside && std::isalpha(static_cast<unsigned char>(c)) != 0) return true;
    if (c == '}') is_inside = false;
  }
  return false;
}

/// Calls that get their text from elsewhere: how many there are, and parts of these texts.
struct Elsewhere {
  int calls;
  std::vector<const char*> parts;
};
const std::map<std::string, Elsewhere> elsewhere{
    {"EventLevel::warning, text)",
     {2, {") was turned away: ", " says that its training loss is "}}},
    {"EventLevel::warning, trouble)", {1, {"): the session ended: ", " ended with an error: "}}},
    {"EventLevel::warning, std::move(text))",
     {2, {"an enrolment was refused: ", " was not let in: "}}},
    {"EventLevel::warning, std::move(news))",
     {2, {"paused, the disk is full", "paused: too many files are open"}}},
    {"EventLevel::warning, to_string(left_out))", {1, {" more within "}}},
    {"EventLevel::warning, parts_.roster.bench().why(client))",
     {1, {" times in a row without an update that counts"}}},
    {"EventLevel::warning, fmt::format(, name, reason))",
     {1, {"it was revoked", "was enrolled again with a new key"}}},
    {"EventLevel::warning, fmt::format(, name, text))", {1, {"its upload sends"}}},
    {"report_full_disk(text)", {1, {": upload postponed: "}}},
    {"report_full_disk(std::move(news))", {1, {"paused, the disk is full"}}},
    // Files that declare or define it.
    {"report_full_disk(std::string text)", {1, {}}},
    {"report_full_disk(std::string text) = 0", {1, {}}},
    {"report_full_disk(std::string text) override { "
     "parts_.control.store.report_full_disk(std::move(text))",
     {1, {}}},
    {"report_full_disk(std::move(text))", {1, {}}},
    {"report_full_disk(std::string text) { report(EventLevel::warning, std::move(text))", {1, {}}},
};

}  // namespace

TEST_CASE("every remedy is of an event that the server writes") {
  const std::string text = server_sources({"remedies.cpp"});
  for (const Remedy& remedy : remedies()) {
    CAPTURE(remedy.part);
    CHECK(text.find(remedy.part) != std::string::npos);
    CHECK(!remedy.cause.empty());
    CHECK(!remedy.remedy.empty());
  }
}

TEST_CASE("each flag, command and view that a remedy names is there") {
  const std::string flags = source_text("docs/guide/flags.md");
  const std::string views = source_text("docs/guide/dashboard.md");
  std::string all = with_joined_literals(source_text("server/admin/pages/alerts.cpp"));
  for (const Remedy& each : remedies()) all += fmt::format("{}\n{}\n", each.cause, each.remedy);
  const auto named = [&all](const char* pattern) {
    std::set<std::string> found;
    const std::regex expression(pattern);
    for (std::sregex_iterator at(all.begin(), all.end(), expression), end; at != end; ++at)
      found.insert((*at)[1].str());
    return found;
  };
  for (const std::string& flag : named("(--[a-z][a-z-]*)")) {
    CAPTURE(flag);
    CHECK(std::regex_search(flags, std::regex("\\| `" + flag + "[` ]")));
  }
  for (const std::string& command : named("fl-server ([a-z-]+)")) {
    CAPTURE(command);
    CHECK(flags.find("### fl-server " + command + "\n") != flags.npos);
  }
  for (const std::string& view : named("the view ([A-Z][a-z]+)")) {
    CAPTURE(view);
    // Operators alone have the view Control.
    CHECK((view == "Control" || views.find("\n| " + view + " |") != views.npos));
  }
  CHECK(named("(--[a-z][a-z-]*)").size() > 10);
}

TEST_CASE("every event of the level warning or error has a remedy") {
  // Alerts have remedies of their own.
  const std::string sources = server_sources({"remedies.cpp", "alerts.cpp", "client_figures.cpp"});
  std::map<std::string, int> calls;
  int with_words = 0;
  for (const Site& site : find_sites(sources)) {
    CAPTURE(site.code);
    CAPTURE(site.text);
    if (has_words(site.text)) {
      ++with_words;
      CHECK(find_remedy(site.text) != nullptr);
    } else {
      ++calls[site.code];
      CHECK(elsewhere.contains(site.code));
    }
  }
  CHECK(with_words > 15);
  for (const auto& [code, texts] : elsewhere) {
    const std::string& name = code;
    CAPTURE(name);
    CHECK(calls[name] == texts.calls);
    for (const char* part : texts.parts) {
      CAPTURE(part);
      CHECK(sources.find(part) != sources.npos);
      CHECK(find_remedy(part) != nullptr);
    }
  }
}

TEST_CASE("an event finds its own remedy, and one that says it all has none") {
  const auto part = [](const char* text) {
    const Remedy* const found = find_remedy(text);
    return found != nullptr ? found->part : std::string_view();
  };
  CHECK(part("site-1: update refused: its norm is 12") == "update refused");
  CHECK(part("site-1: update to be repeated: digest mismatch") == "to be repeated");
  CHECK(part("round 3: the deadline passed without a, b") == "the deadline passed without");
  CHECK(part("site-1 says: no space left; it was revoked") == " says: ");
  CHECK(part("site-1 was not let in: 7 more within 60 s") == " more within ");
  CHECK(part("site-1 (10.0.0.1:2) was turned away: the run's model 'a' has other tensors than the "
             "client's: b") == "has other tensors than the client's");
  CHECK(part("given up: x.safetensors: no such file") == "given up: ");
  CHECK(part("judge does not measure f1, which --metric names; it measures accuracy") ==
        "does not measure");
  CHECK(part("site-1 is here: trainer, 600 examples").empty());
}

}  // namespace fl::test
