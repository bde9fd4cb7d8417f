// SPDX-License-Identifier: Apache-2.0
// What a client says of itself in Hello, as it is shown and stored: printable, and not too long.
#pragma once

#include "proto/wire.pb.h"

#include <string>

namespace fl::server {

struct HelloFacts {
  bool evaluator = false;
  std::string software = {};  // Name and version of the client's program.
  std::string model = {};     // The only one that it trains; "": any.
  std::string data = {};      // The shape of its data, in words; "": not known.
  /// The digest of the only tensors that it trains (digest_in_any_order()), hexadecimal; "": not
  /// known, or any.
  std::string tensors = {};
};

[[nodiscard]] HelloFacts read_facts(const wire::Hello& hello);

}  // namespace fl::server
