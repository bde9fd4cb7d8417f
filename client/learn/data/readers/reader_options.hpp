// SPDX-License-Identifier: Apache-2.0
// ReaderOptions: the argument of a reader, "PATH" or "PATH,KEY=VALUE,KEY=VALUE". A path ends at its
// first comma. One thread at a time.
#pragma once

#include "client/learn/data/readers/readers.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace fl {

/// The reader asks for each option that it knows, and then calls finish().
class ReaderOptions {
 public:
  /// Refuses an empty path, a setting without "=", and a key that is given twice. `request` must
  /// outlive the object.
  static Result<ReaderOptions> parse(const DataRequest& request, std::string_view usage);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// The value of an option, which must not be empty; "" if it is not given.
  [[nodiscard]] std::string text(std::string_view key);
  /// The text of an option, cut at each "+". An empty part is an error that finish() reports.
  [[nodiscard]] std::vector<std::string> words(std::string_view key);
  /// An error for an empty value, or for an option that nobody asked for.
  [[nodiscard]] Result<void> finish() const;

 private:
  explicit ReaderOptions(const DataRequest& request) : request_(&request) {}

  const DataRequest* request_;
  std::string path_;
  std::vector<std::pair<std::string_view, std::string_view>> left_;
  std::string known_;
  std::string wrong_;
};

}  // namespace fl
