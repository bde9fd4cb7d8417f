// SPDX-License-Identifier: Apache-2.0
// The sub-command `fl-client site-key`: makes the key that others know this site by in a member
// list, or shows its public half. It needs neither a server nor an identity.
#pragma once

#include <functional>

namespace CLI {
class App;
}  // namespace CLI

namespace fl::client {

/// Declares the sub-command; otherwise as declare_predict_command() (predict_command.hpp).
[[nodiscard]] std::function<int()> declare_site_key_command(CLI::App& app);

}  // namespace fl::client
