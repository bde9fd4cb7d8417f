// SPDX-License-Identifier: Apache-2.0
// The sub-command `fl-client predict`: what a built-in model says of examples. It needs neither a
// server nor an identity.
#pragma once

#include <functional>

namespace CLI {
class App;
}  // namespace CLI

namespace fl::client {

/// Declares the sub-command. The function that it returns is to be called when `app` has parsed: it
/// runs the sub-command if it was given and returns the exit code, or -1 if it was not. `app` must
/// live until then.
[[nodiscard]] std::function<int()> declare_predict_command(CLI::App& app);

}  // namespace fl::client
