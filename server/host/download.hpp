// SPDX-License-Identifier: Apache-2.0
// What a host gives a session to send.
#pragma once

#include "shared/wire/transfer.hpp"

#include <cstddef>

namespace fl::server {

/// What a session sends for a Fetch: the header, then the bytes of `source` from model.offset() on.
struct Download {
  wire::ModelHeader model;
  SegmentSource source;  // Keeps the files open.
  std::size_t chunk_bytes_max = 0;
};

}  // namespace fl::server
