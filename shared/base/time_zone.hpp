// SPDX-License-Identifier: Apache-2.0
// The time zone of this machine, for what people give in local time. All times that programs print
// are UTC.
#pragma once

#include "shared/base/environment.hpp"
#include "shared/base/error.hpp"

#include <filesystem>
#include <string>

namespace fl {

/// Whether the variable TZ, if it is set, names a zone that the C library finds: it takes UTC in
/// silence for a name that it does not know, as in a container without zone data. `zones`: the
/// folder of zone data, unless TZDIR names another one. Errors: invalid_input.
[[nodiscard]] Result<void> check_time_zone(
    const Environment& environment, const std::filesystem::path& zones = "/usr/share/zoneinfo");

/// The local time as "17:04, UTC+01:00".
[[nodiscard]] std::string local_time_text(double unix_seconds);

}  // namespace fl
