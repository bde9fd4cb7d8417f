// SPDX-License-Identifier: Apache-2.0
// The group of sub-commands `fl-client site`, which is about a datacenter's GPUs and networks. None
// of them needs a server or an identity.
#pragma once

#include <functional>
#include <iosfwd>

namespace CLI {
class App;
}  // namespace CLI

namespace fl::site {

/// Declares `site` and its sub-commands. The function that it returns is to be called when `app`
/// has parsed: it runs the sub-command that was given and returns the exit code, or -1 if none was.
/// `app` must live until then, `out` gets the result. A wrong value is a CLI::ParseError, of
/// app.parse() or of that function.
[[nodiscard]] std::function<int()> declare_site_commands(CLI::App& app, std::ostream& out);

}  // namespace fl::site
