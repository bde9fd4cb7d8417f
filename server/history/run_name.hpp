// SPDX-License-Identifier: Apache-2.0
// The name of a run where people read of it: its number, with its model, method and codec. The
// number is its row's id; commands take it, and the key too. Pure.
#pragma once

#include "server/history/records.hpp"

#include <string>

namespace fl::server {

/// The parts of a name, which tell one run from another at a glance.
struct RunName {
  RunId number = 0;
  std::string model;
  std::string method;  // --strategy; "-": its settings can't be read.
  std::string codec;   // --codec; the same.
};

[[nodiscard]] RunName name_of(const RunRecord& run);

/// "run 3 (lenet, fedavg, ecuq:4)".
[[nodiscard]] std::string to_text(const RunName& name);

}  // namespace fl::server
