// SPDX-License-Identifier: Apache-2.0
// Which part of a run's model something is about. A part is trained, summed and made into versions
// by itself. There is one today, the whole: so a run has one vector, and one number for its
// versions.
#pragma once

#include <cstdint>

namespace fl {

enum class ModelPart : std::uint32_t { whole };

}  // namespace fl
