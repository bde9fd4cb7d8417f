// SPDX-License-Identifier: Apache-2.0
// Which Tributary this is. The version is written here and nowhere else: CMakeLists.txt reads it
// from this file. The commit is known at each build, and lies in a file of its own, so that few
// files depend on it.
#pragma once

namespace fl {

inline constexpr const char* software_version = "0.2.0-dev";

/// The version and the commit, as in "0.2.0-dev (abc1234)". "abc1234+" has changes that are not
/// committed; outside a git checkout the version stands alone. Link fl_version for it.
extern const char* const software_version_and_commit;

}  // namespace fl
