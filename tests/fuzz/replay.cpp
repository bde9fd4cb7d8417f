// SPDX-License-Identifier: Apache-2.0
// Runs the fuzz targets in an ordinary build, on their seeds, on random mutations of them that are
// the same in every run, and on inputs that are right but for one lie (lies.hpp). A broken promise
// aborts the program; FL_REPLAYED_FILE then has the input.
#include "kernels/generic/philox.hpp"
#include "shared/base/io/file.hpp"
#include "tests/fuzz/golden_layout.hpp"
#include "tests/fuzz/lies.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <vector>

using namespace fl;

extern "C" {
int fuzz_block(const std::uint8_t* data, std::size_t size);
int fuzz_payload(const std::uint8_t* data, std::size_t size);
int fuzz_frame(const std::uint8_t* data, std::size_t size);
int fuzz_safetensors(const std::uint8_t* data, std::size_t size);
int fuzz_token(const std::uint8_t* data, std::size_t size);
int fuzz_enrolment(const std::uint8_t* data, std::size_t size);
int fuzz_idx(const std::uint8_t* data, std::size_t size);
int fuzz_csv(const std::uint8_t* data, std::size_t size);
int fuzz_npz(const std::uint8_t* data, std::size_t size);
int fuzz_image(const std::uint8_t* data, std::size_t size);
int fuzz_messages(const std::uint8_t* data, std::size_t size);
int fuzz_settings(const std::uint8_t* data, std::size_t size);
int fuzz_hello(const std::uint8_t* data, std::size_t size);
int fuzz_members(const std::uint8_t* data, std::size_t size);
int fuzz_masked(const std::uint8_t* data, std::size_t size);
}

namespace {

constexpr std::uint64_t mutations = 3000;  // For each target, over all its seeds.

using fuzz::Input;
using Target = int (*)(const std::uint8_t*, std::size_t);

void run(Target target, const Input& input) {
  static const auto file = posix_files().open(FL_REPLAYED_FILE, OpenMode::truncate).value();
  file->write_at(0, std::as_bytes(std::span(input))).value();
  file->truncate(input.size()).value();
  const Input exact(
      input.begin(),
      input.end());  // No room behind its end, so that AddressSanitizer sees every overrun.
  CHECK(target(exact.data(), exact.size()) == 0);
}

/// The seeds of a target, in the order of their names.
std::vector<Input> seeds_of(const char* target) {
  const auto folder = std::filesystem::path(FL_CORPUS_FOLDER) / target;
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  std::vector<Input> seeds;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

/// Makes one change: replaces a byte, flips a bit, removes or repeats some bytes, appends some
/// bytes, or cuts off the end.
void mutate(Input& input, const philox::Block& random) {
  // Half of the changes hit the first bytes, where the numbers are.
  const std::size_t reach = random.word[0] % 2 == 0 ? input.size() : 64;
  const auto at =
      input.begin() + static_cast<std::ptrdiff_t>(random.word[1] % std::min(reach, input.size()));
  const auto some = std::min<std::ptrdiff_t>(random.word[2] % 16 + 1, input.end() - at);
  switch (random.word[0] / 2 % 8) {
    case 0: input.erase(at, input.end()); break;
    case 1: input.erase(at, at + some); break;
    case 2: {
      const Input repeated(at, at + some);
      input.insert(at, repeated.begin(), repeated.end());
      break;
    }
    case 3:
      input.insert(input.end(), static_cast<std::size_t>(some),
                   static_cast<std::uint8_t>(random.word[3]));
      break;
    case 4:
    case 5: *at = static_cast<std::uint8_t>(*at ^ 1u << random.word[3] % 8); break;
    default: *at = static_cast<std::uint8_t>(random.word[3]); break;
  }
}

void replay(const char* name, Target target) {
  const std::vector<Input> seeds = seeds_of(name);
  REQUIRE(!seeds.empty());
  run(target, {});
  for (const Input& seed : seeds) run(target, seed);
  for (std::uint64_t i = 0; i < mutations; ++i) {
    Input input = seeds[i % seeds.size()];
    const std::uint32_t changes = philox::block_at(1, 0, i).word[0] % 4 + 1;
    for (std::uint32_t change = 1; change <= changes && !input.empty(); ++change) {
      mutate(input, philox::block_at(1, change, i));
    }
    run(target, input);
  }
}

}  // namespace

TEST_CASE("fuzzing: blocks that are right but for one lie") {
  std::set<int> formats;
  for (const Input& seed : seeds_of("block")) {
    if (seed.size() > 2) formats.insert(seed[2]);
    for (const Input& lie : fuzz::lies_about_block(seed)) run(fuzz_block, lie);
  }
  // Blocks of low rank don't decode alone; payloads have them.
  for (const codec::FormatRow& row : codec::format_table) {
    const bool is_alone =
        row.kind != codec::FormatKind::unknown && row.kind != codec::FormatKind::low_rank;
    CAPTURE(static_cast<int>(row.id));
    if (is_alone) CHECK(formats.contains(static_cast<int>(row.id)));
  }
}

TEST_CASE("fuzzing: payloads that are right but for one lie") {
  for (const Input& seed : seeds_of("payload")) {
    for (const Input& lie : fuzz::lies_about_payload(seed, fuzz::golden_layout()))
      run(fuzz_payload, lie);
  }
}

TEST_CASE("fuzzing: blocks") { replay("block", fuzz_block); }
TEST_CASE("fuzzing: payloads") { replay("payload", fuzz_payload); }
TEST_CASE("fuzzing: frames") { replay("frame", fuzz_frame); }
TEST_CASE("fuzzing: safetensors files") { replay("safetensors", fuzz_safetensors); }
TEST_CASE("fuzzing: join tokens") { replay("token", fuzz_token); }
TEST_CASE("fuzzing: messages of enrolment") { replay("enrolment", fuzz_enrolment); }
TEST_CASE("fuzzing: IDX files") { replay("idx", fuzz_idx); }
TEST_CASE("fuzzing: CSV files and schemas") { replay("csv", fuzz_csv); }
TEST_CASE("fuzzing: numpy's files") { replay("npz", fuzz_npz); }
TEST_CASE("fuzzing: messages of trainer programs and ranks") { replay("messages", fuzz_messages); }
TEST_CASE("fuzzing: settings as JSON") { replay("settings", fuzz_settings); }
TEST_CASE("fuzzing: JPEG and PNG files") { replay("image", fuzz_image); }
TEST_CASE("fuzzing: the first bytes of a connection") { replay("hello", fuzz_hello); }
TEST_CASE("fuzzing: member lists") { replay("members", fuzz_members); }
TEST_CASE("fuzzing: messages of masked rounds") { replay("masked", fuzz_masked); }
