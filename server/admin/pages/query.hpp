// SPDX-License-Identifier: Apache-2.0
// What follows "?" in a page's address: NAME=VALUE&NAME=VALUE…
#pragma once

#include "shared/base/error.hpp"

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace fl::server {

class AddressQuery {
 public:
  /// Decodes %XX and '+' of values. `invalid_input` for a name that is not in `names`, twice the
  /// same name, or a text above limits::admin_query_bytes_max.
  [[nodiscard]] static Result<AddressQuery> parse(std::string_view text,
                                                  std::span<const std::string_view> names);

  /// The value as a whole number; none if the name is not there. `invalid_input`: it is no whole
  /// number from `least` to `most`.
  [[nodiscard]] Result<std::optional<std::int64_t>> number(std::string_view name,
                                                           std::int64_t least,
                                                           std::int64_t most) const;
  /// The value; "" if the name is not there.
  [[nodiscard]] const std::string& text(std::string_view name) const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace fl::server
