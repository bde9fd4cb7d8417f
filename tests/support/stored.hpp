// SPDX-License-Identifier: Apache-2.0
// What a client keeps on its disk, as plain vectors.
#pragma once

#include "client/state/client_state.hpp"

#include <algorithm>
#include <vector>

namespace fl::test {

using namespace fl::client;

/// The values, or zeros if there are none.
inline std::vector<float> values_of(const client::StoredValues& stored, std::uint64_t elements) {
  std::vector<float> values(stored.values().begin(), stored.values().end());
  values.resize(elements);
  return values;
}

inline std::vector<float> values_of(const Result<client::StoredValues>& stored,
                                    const Layout& layout) {
  return values_of(stored.value(), layout.elements());
}
inline std::vector<float> values_of(const Result<client::StoredValues>& stored,
                                    std::uint64_t elements) {
  return values_of(stored.value(), elements);
}

/// ClientState::save_update() of vectors. Without `kept` there are no local values.
inline Result<void> save(ClientState& state, const RunLayout& layout, std::vector<float> update,
                         const codec::Codec& codec, codec::CodeInputs inputs,
                         wire::UploadBegin begin = {}, const std::vector<float>& kept = {},
                         const LocalRule* rule = nullptr, codec::DeviceCopy device = {}) {
  FL_TRY(auto local, state.new_local_values(kept.size()));
  if (!kept.empty()) FL_CHECK(client::copy_values(kept, local.values));
  client::StoredValues stored(std::move(update));
  return state.save_update(layout, stored, codec, inputs, std::move(begin), std::move(local), rule,
                           device);
}

}  // namespace fl::test
