// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/core/block_format.hpp"

#include <fmt/format.h>

namespace fl::codec {

Result<void> check_body_bytes(Bytes body, std::size_t expected) {
  if (body.size() == expected) return {};
  return Error(Errc::corrupt,
               fmt::format("{} bytes after the format's id, {} expected", body.size(), expected));
}

}  // namespace fl::codec
