// SPDX-License-Identifier: Apache-2.0
// Long vectors in memory, in files, and in files that can't be mapped: all behave alike.
#include "client/state/stored_values.hpp"

#include "shared/base/io/scratch_folder.hpp"
#include "tests/support/mem_files.hpp"
#include "tests/support/print_result.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace fl::test {

using namespace fl::client;
namespace {

using client::StoredValues;
using client::ValuePool;

std::vector<float> counted(std::size_t elements) {
  std::vector<float> values(elements);
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

bool equal(const StoredValues& stored, const std::vector<float>& wanted) {
  return std::ranges::equal(stored.values(), wanted);
}

TEST_CASE("what is written shows at once, wherever the values lie") {
  const ScratchFolder folder = ScratchFolder::make("values").value();
  MemFiles memory;
  memory.make_folder("/state").value();
  const auto wanted = counted(3 * client::piece_elements / 2);
  StoredValues in_memory(std::vector<float>(wanted.size()));
  auto mapped = StoredValues::make(posix_files(), folder.path() / "v", wanted.size()).value();
  auto copied = StoredValues::make(memory, "/state/v", wanted.size()).value();
  for (StoredValues* const stored : {&in_memory, &mapped, &copied}) {
    REQUIRE(stored->size() == wanted.size());
    client::copy_values(wanted, *stored).value();
    CHECK(equal(*stored, wanted));
    const float seven = 7;
    stored->write(5, {&seven, 1}).value();
    CHECK(stored->values()[5] == 7);
    stored->write_bytes(21, std::as_bytes(std::span(&seven, 1)).first(3)).value();
    CHECK(stored->values()[5] != 7);
    client::fill_zeros(*stored, 4).value();
    CHECK(stored->values()[3] == 4);
    CHECK(std::ranges::all_of(stored->values().subspan(4), [](float v) { return v == 0; }));
    CHECK(stored->sync());
    CHECK(stored->check());
  }
  CHECK(in_memory.memory().size() == wanted.size());
  CHECK(mapped.memory().empty());
  CHECK(copied.memory().empty());
}

TEST_CASE("the values of a file are read again, and a short file is named") {
  const ScratchFolder folder = ScratchFolder::make("values").value();
  MemFiles memory;
  memory.make_folder(folder.path()).value();
  const auto path = folder.path() / "v";
  for (Files* const files : {&posix_files(), static_cast<Files*>(&memory)}) {
    auto made = StoredValues::make(*files, path, 10).value();
    client::copy_values(counted(10), made).value();
    CHECK(equal(StoredValues::open(*files, path, 10).value(), counted(10)));
    CHECK(equal(StoredValues::open(*files, path, 4).value(), counted(4)));
    const auto longer = StoredValues::open(*files, path, 11);
    REQUIRE_FALSE(longer);
    CHECK(longer.error().code() == Errc::corrupt);
    CHECK(longer.error().message().starts_with(path.string()));
    CHECK(StoredValues::open(*files, folder.path() / "none", 1).error().code() == Errc::not_found);
  }
}

TEST_CASE("a file that is cut while its values are used is an error of the disk") {
  const ScratchFolder folder = ScratchFolder::make("values").value();
  const auto path = folder.path() / "v";
  auto stored = StoredValues::make(posix_files(), path, 10'000).value();
  client::copy_values(counted(10'000), stored).value();
  posix_files().open(path, OpenMode::update).value()->truncate(4096).value();
  CHECK(stored.check());
  CHECK(stored.values()[9'999] == 0);
  CHECK(stored.check().error().code() == Errc::io);
}

TEST_CASE("a full disk shows when the room is taken, not when it is written") {
  MemFiles memory;
  memory.make_folder("/state").value();
  memory.space_limit(1000);
  const auto stored = StoredValues::make(memory, "/state/v", 1000);
  REQUIRE_FALSE(stored);
  CHECK(stored.error().code() == Errc::no_space);
}

TEST_CASE("a pool has vectors in memory while they fit, and others in files without a name") {
  const ScratchFolder folder = ScratchFolder::make("pool").value();
  ValuePool pool(posix_files(), folder.path(), 100 * sizeof(float));
  auto first = pool.borrow(60).value();
  auto second = pool.borrow(60).value();
  auto third = pool.borrow(40).value();
  CHECK(first.is_in_memory());
  CHECK_FALSE(second.is_in_memory());
  CHECK(second.memory().empty());
  CHECK(third.is_in_memory());
  CHECK(posix_files().list(folder.path()).value().empty());
  const float* const place = second.values().data();
  pool.give_back(std::move(second));
  CHECK(pool.borrow(60).value().values().data() == place);
  const float* const memory = first.memory().data();
  pool.give_back(std::move(first));
  CHECK(pool.borrow(60).value().memory().data() == memory);
  CHECK(pool.borrow(60).value().is_in_memory());  // Those before were freed.
}

TEST_CASE("a vector that a pool keeps takes no room from one of another length") {
  const ScratchFolder folder = ScratchFolder::make("pool").value();
  ValuePool pool(posix_files(), folder.path(), 100 * sizeof(float));
  for (const std::size_t elements : {100, 30, 100, 101, 100}) {
    auto values = pool.borrow(elements).value();
    CHECK(values.size() == elements);
    CHECK(values.is_in_memory() == (elements <= 100));
    pool.give_back(std::move(values));
  }
}

TEST_CASE("a pool of a disk in memory, and one without a disk, keep all in memory") {
  MemFiles memory;
  memory.make_folder("/state").value();
  ValuePool on_disk(memory, "/state", 0);
  ValuePool without;
  for (ValuePool* const pool : {&on_disk, &without})
    CHECK(pool->borrow(10).value().memory().size() == 10);
}

}  // namespace
}  // namespace fl::test
