// SPDX-License-Identifier: Apache-2.0
// Making a version on the disk: whatever change a power loss hits, the next start makes the same
// version again, and a version that was made is there with all that the next one needs.
#include "server/versions/make_version.hpp"
#include "shared/codec/spec/parser.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"
#include "tests/world/process_files.hpp"

#include <doctest/doctest.h>

#include <map>
#include <span>
#include <vector>

namespace fl::test {

using namespace fl::codec;
using namespace fl::server;
namespace {

const std::filesystem::path models = "/models";

/// A run on one disk, whose versions follow from the same updates.
class Run {
 public:
  Run(const char* strategy, const char* downlink, bool keeps_mean)
      : keeps_mean_(keeps_mean),
        strategy_(parse_strategy(strategy).value()),
        layout_(
            run_layout(Layout::make({{"w", {30, 40}}, {"b", {30}}}).value(), *strategy_).value()),
        downlink_(parse_codec(downlink).value()) {}

  MemFiles files;
  std::map<Version, CheckpointRecord> records;

  /// Makes version 0 and then each up to `last`, which must not fail.
  void make_until(Version last) {
    files.make_folder(models).value();
    auto writer = CheckpointWriter::create(files, models, 0, layout_.all, {}).value();
    writer.append(std::vector<float>(layout_.all.elements(), 0.5F)).value();
    records[0] = writer.finish().value();
    while (records.rbegin()->first < last) REQUIRE(make_next());
  }

  Result<void> make_next() {
    const Version base = records.rbegin()->first;
    FL_TRY(const auto version, open_version(files, models, records.at(base), layout_.all));
    const ReadValues mean = [base](std::uint64_t first, std::span<float> out) {
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = static_cast<float>(((first + i) * 37 + base * 11) % 101) / 100 - 0.5F;
      return success();
    };
    const RoundFacts facts{.round = base + 1, .lr = 0.1};
    const StepJob job{files,      models, models,     layout_, *version, mean, keeps_mean_,
                      *strategy_, facts,  *downlink_, 7,       {},       true};
    FL_TRY(records[base + 1], make_next_version(job));
    FL_TRY(const auto kept, open_kept_mean(files, models, base + 1));
    REQUIRE((kept != nullptr) == keeps_mean_);
    if (!kept) return {};
    std::vector<float> wanted(layout_.all.elements());
    mean(0, wanted).value();
    std::vector<float> there(wanted.size());
    FL_CHECK(kept->read_exactly(0, std::as_writable_bytes(std::span(there))));
    CHECK(there == wanted);
    return {};
  }

  /// The contents of all files that a server with the newest version needs.
  [[nodiscard]] std::map<std::string, std::string> contents() {
    std::map<std::string, std::string> all;
    for (const auto& name : files.list(models).value()) {
      // The last step of making a version removes what is older than its base.
      const bool is_newest =
          name.starts_with(checkpoint_name(records.rbegin()->first).substr(0, 12));
      if (is_newest) all[name] = peek(files, models / name);
    }
    return all;
  }

 private:
  bool keeps_mean_;
  std::shared_ptr<const Strategy> strategy_;
  RunLayout layout_;
  std::shared_ptr<const Codec> downlink_;
};

struct Way {
  const char* strategy;
  const char* downlink;
  std::size_t files;  // The files of a version.
  bool keeps_mean = false;
};

TEST_CASE("a power loss at any change while a version is made changes nothing in the end") {
  for (const Way& way :
       {Way{"fedavg", "none", 1}, Way{"fedavg", "qsgd:7", 3}, Way{"fedadam:lr=0.1", "none", 2},
        Way{"fedadam:lr=0.1", "qsgd:7", 4}, Way{"scaffold", "fp16", 3},
        Way{"fedavg", "none", 2, true}, Way{"fedadam:lr=0.1", "qsgd:7", 5, true}}) {
    CAPTURE(std::string(way.strategy));
    CAPTURE(std::string(way.downlink));
    Run calm(way.strategy, way.downlink, way.keeps_mean);
    calm.make_until(2);
    const std::uint64_t before = calm.files.operations().changes;
    REQUIRE(calm.make_next());
    const std::uint64_t changes = calm.files.operations().changes - before;
    const auto third = calm.contents();
    CHECK(third.size() == way.files);
    REQUIRE(calm.make_next());
    const auto fourth = calm.contents();

    for (std::uint64_t n = 1; n <= changes + 1; ++n) {
      CAPTURE(n);
      for (const std::uint64_t seed : {1u, 2u, 3u, 4u}) {
        CAPTURE(seed);
        Run run(way.strategy, way.downlink, way.keeps_mean);
        run.make_until(2);
        run.files.cut_power_at(n);
        const bool is_made = run.make_next().has_value();
        CHECK(is_made == (n > changes));
        run.files.crash(seed);
        if (is_made) CHECK(run.contents() == third);
        // A version that was not recorded is made again.
        if (!is_made) run.records.erase(3);
        if (!is_made) REQUIRE(run.make_next());
        CHECK(run.contents() == third);
        REQUIRE(run.make_next());
        CHECK(run.contents() == fourth);
      }
    }
  }
}

}  // namespace
}  // namespace fl::test
