// SPDX-License-Identifier: Apache-2.0
#include "client/agent/model_cache.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

using fl::client::StoredValues;

namespace {

fl::Digest digest_of(std::string_view text) { return fl::Digest::of(fl::bytes_of(text)); }

}  // namespace

// The newest models are found. An older one lives while it is used; then its memory is reused.
TEST_CASE("the cache keeps the newest models") {
  fl::client::ModelCache shelf(2);
  auto values = shelf.pool().borrow(3).value();
  const float* const memory = values.values().data();
  shelf.keep(digest_of("first"), std::move(values));
  shelf.keep(digest_of("second"), StoredValues({4, 5, 6}));
  const auto used = shelf.find(digest_of("second"));
  REQUIRE(used != nullptr);
  shelf.keep(digest_of("third"), StoredValues({7, 8, 9}));
  CHECK(shelf.find(digest_of("first")) == nullptr);
  CHECK(shelf.pool().borrow(2).value().values().data() == memory);

  shelf.keep(digest_of("fourth"), StoredValues({1, 1, 1}));
  CHECK(shelf.find(digest_of("second")) == nullptr);
  CHECK(std::ranges::equal(used->values(), std::vector<float>{4, 5, 6}));
}

// Two agents that bring the same version share one copy.
TEST_CASE("a model that the cache has already is not kept twice") {
  fl::client::ModelCache shelf;
  shelf.keep(digest_of("model"), StoredValues({1, 2}));
  const auto before = shelf.find(digest_of("model"));
  shelf.keep(digest_of("model"), StoredValues({1, 2}));
  CHECK(shelf.find(digest_of("model")) == before);
}
