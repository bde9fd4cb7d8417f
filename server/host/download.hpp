// SPDX-License-Identifier: Apache-2.0
// The answer to a Fetch: a host gives it to a session, which sends it.
#pragma once

#include "shared/wire/transfer.hpp"

#include <cstddef>

namespace fl::server {

/// The session sends the header, then the bytes of `source` from model.offset() on.
struct Download {
  wire::ModelHeader model;
  SegmentSource source;  // Keeps the files open.
  std::size_t chunk_bytes_max = 0;
};

}  // namespace fl::server
