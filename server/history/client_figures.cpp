// SPDX-License-Identifier: Apache-2.0
#include "server/history/client_figures.hpp"

#include <array>

namespace fl::server {

namespace {

constexpr std::array figures_of_clients{
    ClientFigure{"is here: trainer, ", " examples", false, "is here: trainer"},
    ClientFigure{"is here: evaluator, ", " examples", false, "is here: evaluator"},
    ClientFigure{"its norm is ", "(--norm-limit)", false,
                 "its norm is too large beside the others' (--norm-limit)"},
    ClientFigure{"says that it has ", "(--weight-cap)", false,
                 "says that it has far more examples than the others, and counts with fewer "
                 "(--weight-cap)"},
    ClientFigure{"the client has ", " training examples; the limit is ", true,
                 "the client has more training examples than may count"},
    ClientFigure{"the client has ", " was enrolled with at most ", true,
                 "the client has more examples than it was enrolled with: give it fewer, or let it "
                 "join again with a token from 'fl-server enroll --max-examples'"},
    ClientFigure{"its weight is ", " examples; the client has ", true,
                 "its weight is more examples than the client has"},
    ClientFigure{"it has ", " examples, and the client has ", true,
                 "it has more examples than the client"},
    ClientFigure{"it took ", " were asked for", false,
                 "it took another number of steps than it was asked for"},
};

}  // namespace

std::span<const ClientFigure> client_figures() { return figures_of_clients; }

std::string without_figures(std::string text) {
  for (const ClientFigure& figure : figures_of_clients) {
    const auto begin = text.find(figure.begin);
    if (begin == text.npos) continue;
    const auto end = text.find(figure.end, begin + figure.begin.size());
    if (end == text.npos) continue;
    const auto count = figure.goes_to_the_end ? text.npos : end + figure.end.size() - begin;
    text.replace(begin, count, figure.shown);
  }
  return text;
}

}  // namespace fl::server
