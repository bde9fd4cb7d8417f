// SPDX-License-Identifier: Apache-2.0
// Reads the JSON header of a safetensors file in one pass, without a tree of JSON values: a model
// may have 65,536 tensors, and a server reads several such headers before it listens. Any thread.
#pragma once

#include "shared/params/safetensors.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

inline constexpr std::string_view safetensors_metadata_key = "__metadata__";

/// A tensor as the header describes it. Only its form is checked: not whether its bytes are there.
struct HeaderEntry {
  TensorSpec spec;
  std::optional<ElementType> type;  // None: the tensor is skipped.
  std::uint64_t begin = 0;          // Offset from the start of the data.
  std::uint64_t end = 0;
};

struct ScannedHeader {
  std::vector<HeaderEntry> entries;  // In the order of the text.
  Metadata metadata;                 // Sorted by key.
};

/// Errors: corrupt (not JSON, another form, a repeated name), too_large (more tensors, dimensions,
/// bytes of a name or entries of the metadata than limits.hpp allows), invalid_input (an element
/// type that we don't read). Nothing that is over a limit is kept.
[[nodiscard]] Result<ScannedHeader> scan_safetensors_header(std::string_view text);

}  // namespace fl
