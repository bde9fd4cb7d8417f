// SPDX-License-Identifier: Apache-2.0
#include "server/app/record_commands.hpp"

#include "server/history/plot.hpp"
#include "shared/base/io/file.hpp"

#include <fmt/format.h>

namespace fl {

Result<RunRecord> asked_run(Store& store, RunId run) {
  FL_TRY(const auto found, run == 0 ? store.shown_run() : store.find_run(run));
  if (found) return *found;
  return Error(Errc::not_found, run == 0 ? "there is no run yet"
                                         : fmt::format("there is no run {}: 'fl-server history "
                                                       "--runs' lists them",
                                                       run));
}

Result<void> plot_run(Store& store, const ServerOptions& options) {
  FL_TRY(const RunRecord run, asked_run(store, options.run));
  FL_TRY(const auto rounds, store.summary(run.id));
  FL_TRY(const std::string svg, plot_svg(run, rounds));
  FL_CHECK(posix_files().write_atomically(options.file, bytes_of(svg)));
  fmt::print("run {} with {} rounds is drawn in {}\n", run.id, rounds.size(), options.file);
  return {};
}

}  // namespace fl
