// fl-sim: a whole federation in one process. federation.cpp puts it together from the server's and
// the client's own parts; in_process_link.cpp is the line between them, scratch_files.cpp their
// disk.
#include "examples/sim/federation.hpp"
#include "examples/sim/options.hpp"
#include "server/history/format.hpp"
#include "shared/base/io/file.hpp"
#include "shared/base/log.hpp"

#include <fmt/format.h>

#include <exception>
#include <string>
#include <vector>

namespace {

fl::Result<void> write_json(const std::string& path, const std::vector<fl::RoundSummary>& rounds) {
  if (path.empty()) return {};
  const std::string text = fl::format_rows(rounds, fl::Format::json);
  auto written = fl::posix_files().write_atomically(path, fl::bytes_of(text));
  if (!written) return written.error().at("--json");
  return {};
}

fl::Result<void> run(const fl::SimOptions& options) {
  FL_CHECK(write_json(options.json, {}));  // Before hours of work, not after.
  FL_TRY(const auto rounds, fl::run_federation(options));
  fmt::print("{}", fl::format_rows(rounds, fl::Format::table));
  if (!rounds.empty()) fmt::print("model digest {}\n", rounds.back().model_digest);
  return write_json(options.json, rounds);
}

}  // namespace

int main(int argc, char** argv) {
  fl::SimOptions options;
  if (const int code = fl::parse_options(argc, argv, options); code >= 0) return code;
  fl::start_log(options.log_json, options.verbose);
  // Thousands of agents would say what each of them does.
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
