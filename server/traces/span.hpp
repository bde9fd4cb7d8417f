// SPDX-License-Identifier: Apache-2.0
// A span of OpenTelemetry: a stretch of time with a name, within another one or at the root of a
// trace.
#pragma once

#include "shared/base/io/digest.hpp"

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace fl::server {

struct Attribute {
  std::string key;
  std::variant<std::string, std::int64_t, double> value;

  bool operator==(const Attribute&) const = default;
};
using Attributes = std::vector<Attribute>;

struct Span {
  Digest trace;  // The trace's id is the digest's 16 bytes.
  std::uint64_t id = 0;
  std::uint64_t parent = 0;  // 0: the span is the root.
  std::string name;
  double begin = 0;  // Unix seconds, as is the end.
  double end = 0;
  Attributes attributes;
  bool has_failed = false;
  std::string failure = {};  // Why it failed.
};

}  // namespace fl::server
