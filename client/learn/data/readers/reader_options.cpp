// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/readers/reader_options.hpp"

#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl {

Result<ReaderOptions> ReaderOptions::parse(const DataRequest& request, std::string_view usage) {
  const auto [path, settings] = cut(request.argument, ',');
  if (path.empty()) return wrong_data(request, fmt::format("say {}", usage));
  ReaderOptions options(request);
  options.path_ = path;
  if (!settings) return options;
  const auto fault = split_settings(*settings, options.left_);
  if (!fault) return options;
  if (fault->kind == SpecFault::Kind::given_twice)
    return wrong_data(request, fmt::format("{} is given twice", fault->part));
  return wrong_data(request,
                    fmt::format("\"{}\" is not KEY=VALUE; say {}. A path ends at its first comma: "
                                "make a link without one to a file that has it in its name, and "
                                "give a column that has one another name",
                                fault->part, usage));
}

std::string ReaderOptions::text(std::string_view key) {
  known_ += fmt::format("{}{}", known_.empty() ? "" : ", ", key);
  const auto given = std::ranges::find(left_, key, &SpecSetting::first);
  if (given == left_.end()) return "";
  const std::string value(given->second);
  left_.erase(given);
  if (value.empty() && wrong_.empty()) wrong_ = fmt::format("{}= has no value", key);
  return value;
}

std::vector<std::string> ReaderOptions::words(std::string_view key) {
  const std::string value = text(key);
  std::vector<std::string> words;
  if (value.empty()) return words;
  for (std::optional<std::string_view> rest = value; rest;) {
    const auto [word, next] = cut(*rest, '+');
    if (word.empty() && wrong_.empty())
      wrong_ = fmt::format(
          "{}={} has an empty name between its +; a column whose name has a + needs "
          "another name",
          key, value);
    words.emplace_back(word);
    rest = next;
  }
  return words;
}

Result<void> ReaderOptions::finish() const {
  if (!wrong_.empty()) return wrong_data(*request_, wrong_);
  if (left_.empty()) return {};
  return wrong_data(*request_, fmt::format("unknown option {}; known are: {}", left_.front().first,
                                           known_.empty() ? "none" : known_));
}

}  // namespace fl
