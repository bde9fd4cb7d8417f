// SPDX-License-Identifier: Apache-2.0
// The table of a run's settings. Pure; any thread.
#pragma once

#include "server/run/setting_row.hpp"
#include "server/run/settings.hpp"

namespace fl::server {

using RunSettingRow = SettingRow<RunSettings, TrainSettings>;
using RunSettingTable = SettingTable<RunSettings, TrainSettings>;

/// All settings, in the order in which --help shows them and check_settings() looks at them.
[[nodiscard]] RunSettingTable run_setting_table();

}  // namespace fl::server
