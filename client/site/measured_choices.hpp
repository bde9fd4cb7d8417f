// SPDX-License-Identifier: Apache-2.0
// MeasuredChoices: what the ranks of a site have chosen by measuring, such as the size of the
// pieces of gradients. A second measurement may end in another choice, and some choices change the
// bits of sums, so the client keeps the first one as long as its state. The ranks choose; the agent
// keeps the choices and tells every group of them.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"

#include <filesystem>
#include <map>
#include <string>

namespace fl::site {

/// The choices. A choice's key names what it depends on.
using MeasuredChoices = std::map<std::string, std::string>;

/// The error `corrupt` for a kept choice that is not possible; it says what to do.
[[nodiscard]] Error no_choice(const MeasuredChoices::value_type& choice);

/// One thread at a time.
class KeptChoices {
 public:
  /// Reads the file; there may be none. Its folder is made with the first choice. Errors: those of
  /// the disk; corrupt, with the file.
  [[nodiscard]] static Result<KeptChoices> open(Files& files, std::filesystem::path file);

  [[nodiscard]] const MeasuredChoices& all() const { return choices_; }
  /// Keeps new choices durably. A choice that is kept already stays as it is.
  [[nodiscard]] Result<void> add(const MeasuredChoices& choices);

 private:
  KeptChoices(Files& files, std::filesystem::path file) : files_(&files), file_(std::move(file)) {}

  Files* files_;
  std::filesystem::path file_;
  MeasuredChoices choices_;
};

}  // namespace fl::site
