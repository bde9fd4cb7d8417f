// SPDX-License-Identifier: Apache-2.0
// The store through which c10d's groups find each other, over the rank's connection to the agent:
// c10d's own TCPStore lets anybody in.
#pragma once

#include "client/site/rank_link.hpp"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace fl::site {

/// `link` must outlive the store and all its copies. Any thread. Functions throw
/// c10d::DistStoreError when the agent is lost or a key does not come in time.
[[nodiscard]] c10::intrusive_ptr<c10d::Store> make_hub_store(RankLink& link);

}  // namespace fl::site
