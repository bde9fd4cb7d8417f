// SPDX-License-Identifier: Apache-2.0
// Time and memory of each rule of --aggregate: n updates of some parameters, in files as the spool
// has them, are aggregated block by block as a closing round does it. Prints a table.
//
//   aggregate_bench [PARAMETERS [N …]]     by default 10,000,000 parameters, 10 and 50 updates
#include "server/round/spooled_rows.hpp"
#include "server/sums/robust_mean.hpp"
#include "shared/codec/encode/codec.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/support/temporary_folder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fl::bench {

using namespace fl::codec;
using namespace fl::server;
namespace {

constexpr std::string_view codec_spec = "ecuq:4";
constexpr std::string_view rules[] = {"median",        "trimmed:2",    "krum:2",
                                      "multikrum:2,5", "geomedian",    "centered-clip:1",
                                      "nnm+trimmed:2", "nnm+geomedian"};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The most memory that the process had since the last reset, in MiB.
double peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}
void reset_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

struct Update {
  std::filesystem::path path;
  std::uint64_t bytes = 0;
};

Update write_update(const std::filesystem::path& path, const Layout& layout, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(layout.elements());
  for (float& value : values) {
    // The numbers have about the shape of a normal distribution.
    const std::uint64_t bits = random();
    value = (static_cast<float>(bits & 0xffff) + static_cast<float>((bits >> 16) & 0xffff) +
             static_cast<float>((bits >> 32) & 0xffff) - 1.5F * 65535) *
            1e-7F;
  }
  Update update;
  update.path = path;
  const auto file = posix_files().open(path, OpenMode::truncate).value();
  FileSink sink(*file);
  update.bytes =
      parse_codec(std::string(codec_spec)).value()->encode(layout, values, seed, sink).value();
  return update;
}

void measure(std::string_view spec, const std::vector<Update>& updates, const Layout& layout) {
  reset_peak();
  const double before = peak_mib();
  const auto start = std::chrono::steady_clock::now();
  SpooledRows rows;
  for (const Update& update : updates) {
    SpooledRows::Source source;
    source.open = [path = update.path]() -> Result<std::shared_ptr<File>> {
      FL_TRY(auto file, posix_files().open(path, OpenMode::read));
      return std::shared_ptr<File>(std::move(file));
    };
    source.adjust = [] { return AdjustUpdate(); };
    source.named = [](const Error& error) { return error; };
    rows.add(std::move(source), update.bytes, layout).value();
  }
  RobustMean mean(parse_aggregate(spec).value(), rows, layout.elements(), 0);
  mean.prepare().value();
  const double prepared = seconds_since(start);
  std::vector<float> out(1 << 18);
  for (std::uint64_t first = 0; first < layout.elements(); first += out.size()) {
    const auto some = std::min<std::uint64_t>(out.size(), layout.elements() - first);
    mean.read(first, std::span(out).first(some)).value();
  }
  fmt::print("| `{}` | {} | {:.1f} | {:.1f} | {:.0f} |\n", spec, updates.size(), prepared,
             seconds_since(start), peak_mib() - before);
}

void run(std::uint64_t parameters, const std::vector<std::size_t>& counts) {
  const Layout layout = Layout::make({{"w", {static_cast<std::int64_t>(parameters)}}}).value();
  const test::TemporaryFolder folder;
  fmt::print("{} parameters, codec {}, {} threads\n\n", parameters, codec_spec, threads_for(0));
  fmt::print("| rule | updates | s for distances | s in all | MiB more |\n|---|---|---|---|---|\n");
  std::vector<Update> updates;
  for (const std::size_t count : counts) {
    while (updates.size() < count) {
      const std::string name = fmt::format("task-{}", updates.size());
      updates.push_back(write_update(folder / name, layout, updates.size()));
    }
    for (const std::string_view spec : rules) measure(spec, updates, layout);
  }
}

}  // namespace
}  // namespace fl::bench

int main(int argc, char** argv) {
  std::vector<std::size_t> counts;
  for (int i = 2; i < argc; ++i) counts.push_back(std::stoul(argv[i]));
  if (counts.empty()) counts = {10, 50};
  fl::bench::run(argc > 1 ? std::stoull(argv[1]) : 10'000'000, counts);
}
