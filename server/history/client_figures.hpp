// SPDX-License-Identifier: Apache-2.0
// Figures of one client's data: in texts of events and reasons its number of examples, the norm of
// its update; and means over so few clients that they tell of each. The admin pages leave them out,
// unless --admin-show-clients is given. The history has them. What a client writes itself about a
// failure is shown as it is.
#pragma once

#include "shared/base/limits.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace fl::server {

/// A piece of a text, from the words `begin` through the words `end`, or through the text's end.
/// The page shows `shown` in its place.
struct ClientFigure {
  std::string_view begin;
  std::string_view end;
  bool goes_to_the_end;
  std::string_view shown;
};

/// All of them. A test holds them against the sources that write the texts.
[[nodiscard]] std::span<const ClientFigure> client_figures();

[[nodiscard]] std::string without_figures(std::string text);

/// The least clients that a mean on the pages is made of.
[[nodiscard]] constexpr std::uint32_t clients_of_a_mean(bool show_clients) {
  return show_clients ? 0 : limits::admin_mean_min;
}

}  // namespace fl::server
