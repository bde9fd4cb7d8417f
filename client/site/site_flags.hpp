// SPDX-License-Identifier: Apache-2.0
// The flags of fl-client about a site.
#pragma once

#include "client/site/site_options.hpp"

namespace CLI {
class App;
}  // namespace CLI

namespace fl::site {

void declare_site_flags(CLI::App& app, SiteOptions& options);
/// Throws CLI::ParseError for flags that can't stand together.
void check_site_flags(const CLI::App& app, const SiteOptions& options);

}  // namespace fl::site
