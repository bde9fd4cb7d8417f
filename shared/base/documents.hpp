// SPDX-License-Identifier: Apache-2.0
// Where the project's documents are on this machine, for remedies that name a page. Packages, the
// Python wheel and `cmake --install` bring them; a build in a checkout has those of the checkout.
// Any thread.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace fl {

/// The path of a page that is named by its place in the repository, as in "docs/guide/data.md", for
/// a program that lies in the folder `programs`. If no such page is found: the name, with the words
/// that it is in the sources.
[[nodiscard]] std::string document_path(std::string_view page,
                                        const std::filesystem::path& programs);
/// The path for this program.
[[nodiscard]] std::string document_path(std::string_view page);
/// The end of a --help: where the pages are that it names.
[[nodiscard]] std::string documents_footer();

}  // namespace fl
