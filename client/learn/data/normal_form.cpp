// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/normal_form.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace fl {

std::string normal_form(std::string_view text) {
  const auto is_ascii = [](char byte) { return static_cast<unsigned char>(byte) < 0x80; };
  if (std::ranges::all_of(text, is_ascii)) return std::string(text);
  struct Free {
    void operator()(utf8proc_uint8_t* bytes) const noexcept { std::free(bytes); }
  };
  utf8proc_uint8_t* made = nullptr;
  const auto bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &made,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(made);
  if (bytes < 0) return std::string(text);
  return {reinterpret_cast<const char*>(made), static_cast<std::size_t>(bytes)};
}

}  // namespace fl
