// SPDX-License-Identifier: Apache-2.0
// How many files this process may open. Any thread.
#pragma once

#include <cstdint>

namespace fl {

/// Raises this process's limit of open files as far as it may, and returns it.
[[nodiscard]] std::uint64_t raise_files_max();

}  // namespace fl
