// SPDX-License-Identifier: Apache-2.0
// The program fl-sim: a whole federation in one process. federation.cpp builds it from the parts of
// server and client; in_process_link.cpp connects them, and scratch_files.cpp is their disk.
#include "examples/sim/federation.hpp"
#include "examples/sim/options.hpp"
#include "server/history/format.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/log.hpp"
#include "shared/base/write_signals.hpp"

#include <fmt/format.h>

#include <exception>
#include <string>

namespace {

using fl::server::Format;

fl::Result<void> write_json(const std::string& path, const fl::sim::SimulatedRun& run) {
  if (path.empty()) return {};
  const std::string text = fl::server::format_rows(run.rounds, run.best, Format::json);
  auto written = fl::posix_files().write_atomically(path, fl::bytes_of(text));
  if (!written) return written.error().at("--json");
  return {};
}

fl::Result<void> run(const fl::sim::SimOptions& options) {
  FL_CHECK(write_json(options.json, {}));  // Report a bad path now, not after hours of work.
  FL_TRY(const auto run, fl::sim::run_federation(options));
  fmt::print("{}", fl::server::format_rows(run.rounds, run.best, Format::table));
  if (!run.rounds.empty()) fmt::print("model digest {}\n", run.rounds.back().model_digest);
  return write_json(options.json, run);
}

}  // namespace

int main(int argc, char** argv) {
  fl::ignore_write_signals();
  fl::sim::SimOptions options;
  if (const int code = fl::sim::parse_options(argc, argv, options); code >= 0) return code;
  fl::start_log(options.log_json, options.verbose);
  // Without --verbose it logs only warnings, because there may be thousands of agents.
  if (!options.verbose) fl::set_log_level(fl::LogLevel::warn);
  try {
    const auto result = run(options);
    if (result) return 0;
    fl::log_fatal("fl-sim", result.error().message());
  } catch (const std::exception& error) {
    fl::log_fatal("fl-sim", error.what());
  }
  return 1;
}
