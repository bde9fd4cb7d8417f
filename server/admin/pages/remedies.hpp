// SPDX-License-Identifier: Apache-2.0
// Why an event happened and what to do, for those events of which the text alone does not say it.
#pragma once

#include <span>
#include <string_view>

namespace fl::server {

struct Remedy {
  std::string_view part;  // A part of the event's text.
  std::string_view cause;
  std::string_view remedy;
};

/// All remedies. A test holds each part against the sources that write the texts.
[[nodiscard]] std::span<const Remedy> remedies();

/// Null: the text needs no remedy beside it.
[[nodiscard]] const Remedy* find_remedy(std::string_view text);

}  // namespace fl::server
