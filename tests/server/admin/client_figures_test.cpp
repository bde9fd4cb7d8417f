// SPDX-License-Identifier: Apache-2.0
// What the admin pages leave out of texts fits the texts, as the server's sources write them.
#include "server/history/client_figures.hpp"
#include "tests/server/admin/server_sources.hpp"

#include <doctest/doctest.h>

namespace fl::test {

using namespace fl::server;

TEST_CASE("every figure that is left out is of a text that the server writes") {
  const std::string text = server_sources({"client_figures.cpp"});
  for (const ClientFigure& figure : client_figures()) {
    CAPTURE(figure.begin);
    const auto begin = text.find(std::string(figure.begin));
    REQUIRE(begin != std::string::npos);
    CHECK(text.find(figure.end, begin) != std::string::npos);
  }
}

TEST_CASE("texts lose the figures of one client's data, and nothing else") {
  struct Row {
    const char* text;
    const char* shown;
  };
  const Row rows[] = {
      {"site-3 is here: trainer, 600 examples", "site-3 is here: trainer"},
      {"judge-1 is here: evaluator, 77 examples", "judge-1 is here: evaluator"},
      {"site-3: update refused: its norm is 12.5, more than 4 times the median 1.25 "
       "(--norm-limit)",
       "site-3: update refused: its norm is too large beside the others' (--norm-limit)"},
      {"its norm is 12.5, more than 4 times the median 1.25 (--norm-limit)",
       "its norm is too large beside the others' (--norm-limit)"},
      {"site-3 says that it has 900 examples, and counts with 500: 5 times the median "
       "(--weight-cap)",
       "site-3 says that it has far more examples than the others, and counts with fewer "
       "(--weight-cap)"},
      {"site-3 (10.0.0.3:4): the client has 900 examples, and site-3 was enrolled with at most "
       "500: give it fewer, or let it join again with a token from 'fl-server enroll --name site-3 "
       "--max-examples 900'",
       "site-3 (10.0.0.3:4): the client has more examples than it was enrolled with: give it "
       "fewer, or let it join again with a token from 'fl-server enroll --max-examples'"},
      {"site-3 (10.0.0.3:4): the client has 900 training examples; the limit is 800",
       "site-3 (10.0.0.3:4): the client has more training examples than may count"},
      {"site-3: update refused: its weight is 700 examples; the client has 600",
       "site-3: update refused: its weight is more examples than the client has"},
      {"judge: ignored an invalid evaluation of version 3: it has 80 examples, and the client has "
       "77",
       "judge: ignored an invalid evaluation of version 3: it has more examples than the client"},
      {"site-3: update refused: it took 40 steps; 1 to 30 were asked for",
       "site-3: update refused: it took another number of steps than it was asked for"},
      {"site-3: update refused: it has 12 bytes; 1 to 10 fit the model and codec",
       "site-3: update refused: it has 12 bytes; 1 to 10 fit the model and codec"},
      {"its norm is", "its norm is"},
      {"", ""},
  };
  for (const Row& row : rows) CHECK(without_figures(row.text) == row.shown);
}

}  // namespace fl::test
