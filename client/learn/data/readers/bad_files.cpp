// SPDX-License-Identifier: Apache-2.0
#include "client/learn/data/readers/bad_files.hpp"

#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <utility>

namespace fl {

void BadFiles::add(Error error) {
  if (++count_ <= logged_bad_files_max) first_.push_back(std::move(error));
}

Result<void> BadFiles::finish(const std::filesystem::path& folder, std::uint64_t files) const {
  if (count_ == 0) return {};
  if (files == 1 && !is_skipping_) return first_.front();
  for (const Error& error : first_) log_warn("{}", error.message());
  if (is_skipping_) {
    log_warn("{}: left out {} of {} files that can't be used", folder.string(), count_, files);
    return {};
  }
  return Error(first_.front().code(),
               fmt::format("{}; {} of {} files in {} can't be used, and the log names {}: mend or "
                           "remove them, or leave them out with --skip-bad-files",
                           first_.front().message(), count_, files, folder.string(),
                           count_ <= logged_bad_files_max
                               ? "each"
                               : fmt::format("the first {}", logged_bad_files_max)));
}

}  // namespace fl
