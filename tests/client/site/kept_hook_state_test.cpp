// SPDX-License-Identifier: Apache-2.0
// What gradient hooks keep from round to round, on the rank's disk.
#include "client/site/rank/kept_hook_state.hpp"
#include "client/site/rank/hooks/parse_hook.hpp"
#include "tests/client/site/made_up_buckets.hpp"
#include "tests/client/site/rank_threads.hpp"  // libtorch before doctest: both have CHECK.
#include "tests/support/mem_files.hpp"

#include <doctest/doctest.h>
#include <string>

namespace fl::test {

using namespace fl::site;
namespace {

const std::filesystem::path folder = "/state/ranks";

HookState state_of(float value) {
  return {{"step", torch::tensor({3}, torch::kInt64)},
          {"residual/0", torch::full({2, 3}, value)},
          {"residual/1", torch::full({4}, value, torch::kBFloat16)}};
}

bool is_same(const HookState& a, const HookState& b) {
  return std::ranges::equal(a, b, [](const auto& one, const auto& other) {
    return one.first == other.first && one.second.dtype() == other.second.dtype() &&
           one.second.equal(other.second);
  });
}

std::string read_file(MemFiles& files, const std::filesystem::path& path) {
  return files.read_all(path, UINT64_MAX).value();
}

void write_file(MemFiles& files, const std::filesystem::path& path, const std::string& bytes) {
  REQUIRE(files.write_atomically(path, fl::bytes_of(std::string_view(bytes))).has_value());
}

}  // namespace

TEST_CASE("a hook's state of the last two rounds is kept, of this run and rank only") {
  MemFiles files;
  REQUIRE(files.make_folder("/state").has_value());
  REQUIRE(files.make_folder(folder).has_value());
  const KeptHookState kept(files, folder, 1);
  const KeptHookState other_rank(files, folder, 11);
  CHECK(kept.before("abc", 1)->empty());
  REQUIRE(other_rank.keep("abc", 1, state_of(11)).has_value());
  REQUIRE(kept.keep("old", 9, state_of(9)).has_value());
  REQUIRE(kept.keep("abc", 1, state_of(1)).has_value());
  REQUIRE(kept.keep("abc", 3, state_of(3)).has_value());
  CHECK(kept.before("abc", 1)->empty());
  CHECK(is_same(kept.before("abc", 2).value(), state_of(1)));
  CHECK(is_same(kept.before("abc", 3).value(), state_of(1)));  // Round 3 is trained again.
  CHECK(is_same(kept.before("abc", 4).value(), state_of(3)));
  CHECK(kept.before("old", 10)->empty());  // Another run's file is gone.
  CHECK(kept.before("ab", 4)->empty());
  REQUIRE(kept.keep("abc", 4, state_of(4)).has_value());
  CHECK(kept.before("abc", 3)->empty());  // And so is that of round 1.
  CHECK(is_same(kept.before("abc", 4).value(), state_of(3)));
  // The round that was trained again takes the place of its first try.
  REQUIRE(kept.keep("abc", 4, state_of(5)).has_value());
  CHECK(is_same(kept.before("abc", 5).value(), state_of(5)));
  CHECK(is_same(other_rank.before("abc", 5).value(), state_of(11)));
  CHECK(files.list(folder)->size() == 3);
}

TEST_CASE("a damaged state is an error that names the file, and without the file it begins anew") {
  MemFiles files;
  REQUIRE(files.make_folder("/state").has_value());
  REQUIRE(files.make_folder(folder).has_value());
  const KeptHookState kept(files, folder, 0);
  REQUIRE(kept.keep("abc", 1, state_of(1)).has_value());
  REQUIRE(files.list(folder)->size() == 1);
  const auto path = folder / files.list(folder)->front();
  const std::string good = read_file(files, path);
  const auto check_refused = [&](const std::string& bytes) {
    write_file(files, path, bytes);
    const auto state = kept.before("abc", 2);
    REQUIRE(!state.has_value());
    CHECK(state.error().code() == Errc::corrupt);
    CHECK(state.error().message().find(path.string()) != std::string::npos);
    CHECK(state.error().message().find("remove it") != std::string::npos);
  };
  for (const std::size_t length :
       {std::size_t{0}, std::size_t{31}, std::size_t{32}, good.size() / 2, good.size() - 1}) {
    CAPTURE(length);
    check_refused(good.substr(0, length));
  }
  check_refused(good + "x");
  for (std::size_t at = 0; at < good.size(); at += 37) {
    CAPTURE(at);
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x10);
    check_refused(bytes);
  }
  write_file(files, path, good);
  CHECK(is_same(kept.before("abc", 2).value(), state_of(1)));
  REQUIRE(files.remove(path).has_value());
  CHECK(kept.before("abc", 2)->empty());
}

TEST_CASE("a hook that is loaded from the disk goes on with the same bits, and anew without it") {
  for (const std::string spec :
       {"codec:ecuq:2+ef", "topk:0.1", "powersgd:2,start=2", "onebit-adam:2"}) {
    CAPTURE(spec);
    std::atomic<int> same_bits = 0;
    std::atomic<int> other_bits = 0;
    on_ranks(2, [&](Ranks& ranks) {
      MemFiles files;
      (void)files.make_folder("/state");
      (void)files.make_folder(folder);
      const KeptHookState kept(files, folder, ranks.rank());
      const auto step = [&](GradientHook& hook, int number) {
        Bucket bucket = made_up_bucket({{{0, {200, 100}}}}, 0, number, ranks.rank());
        hook.reduce(bucket, ranks);
        return bucket.gradient;
      };
      const auto hook = std::move(parse_hook(spec).value().hook);
      for (int number = 0; number < 4; ++number) (void)step(*hook, number);
      (void)kept.keep("abc", 1, hook->save());
      const auto again = std::move(parse_hook(spec).value().hook);
      again->load(kept.before("abc", 2).value());
      const auto anew = std::move(parse_hook(spec).value().hook);
      anew->load(kept.before("another", 2).value());
      const torch::Tensor expected = step(*hook, 4);
      same_bits += step(*again, 4).equal(expected);
      other_bits += !step(*anew, 4).equal(expected);
    });
    CHECK(same_bits == 2);
    CHECK(other_bits == 2);
  }
}

}  // namespace fl::test
