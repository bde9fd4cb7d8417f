// SPDX-License-Identifier: Apache-2.0
// The sub-command `fl-client members`: shows the member list that this site has accepted, and the
// one that the server proposes in its place, or approves that. It needs neither a server nor an
// identity, and may run beside a client in the same state folder.
#pragma once

#include <functional>
#include <string>

namespace CLI {
class App;
}  // namespace CLI

namespace fl::client {

/// Declares the sub-command; otherwise as declare_predict_command() (predict_command.hpp). `state`:
/// the client's folder, by its flag; it must outlive the function.
[[nodiscard]] std::function<int()> declare_members_command(CLI::App& app, const std::string& state);

}  // namespace fl::client
