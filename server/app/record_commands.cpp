// SPDX-License-Identifier: Apache-2.0
#include "server/app/record_commands.hpp"

#include "server/app/commands.hpp"
#include "server/app/compare_runs.hpp"
#include "server/history/plot.hpp"
#include "shared/base/flags.hpp"
#include "shared/base/io/file.hpp"

#include <fmt/format.h>

#include <limits>

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

void declare_compare(CLI::App& command, ServerOptions& options) {
  const auto number = whole_number(1, std::numeric_limits<RunId>::max());
  command.add_option("RUN", options.run, "The number of a run")->required()->check(number);
  command.add_option("OTHER", options.other_run, "The number of another")
      ->required()
      ->check(number);
  command.add_option("--reach", options.reach,
                     "The value of the main metric for which rounds, time and bytes are counted. "
                     "By default the target of a run, or the best that both have reached");
  command.add_flag_callback(
      "--json", [&options] { options.format = Format::json; }, "Print JSON");
}

Result<void> print_comparison(const ServerOptions& options) {
  FL_TRY(const auto store, open_store(options, true));
  FL_TRY(const auto comparison,
         compare_runs(*store, options.run, options.other_run, options.reach));
  fmt::print("{}", options.format == Format::json ? comparison_json(comparison)
                                                  : comparison_table(comparison));
  return {};
}

}  // namespace fl
