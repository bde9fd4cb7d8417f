// SPDX-License-Identifier: Apache-2.0
// An answer of the admin pages, and how it becomes bytes.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/json.hpp"

#include <string>
#include <string_view>

namespace fl::server {

struct PageAnswer {
  unsigned status = 200;
  std::string body = {};
  std::string_view type = "application/json";
  std::string headers = {};  // More headers, each with CRLF at the end.
};

/// {"error": "why"}, with a status that is not 200.
[[nodiscard]] PageAnswer refusal(unsigned status, std::string_view why);
/// An answer of JSON. `headers`: as in PageAnswer.
[[nodiscard]] PageAnswer json_answer(const nlohmann::json& json, std::string headers = "");
/// The page's JSON, or why it could not be read.
[[nodiscard]] PageAnswer answer_of(Result<std::string> text);

/// The head of an answer with a body of `body_bytes` bytes. No other page may show or script it,
/// and a browser asks anew each time, unless `headers` say otherwise.
[[nodiscard]] std::string answer_head(unsigned status, std::string_view type,
                                      std::string_view headers, std::uint64_t body_bytes);
/// The head of an answer without a length: the body lasts as long as the connection.
[[nodiscard]] std::string stream_head(std::string_view type);

}  // namespace fl::server
