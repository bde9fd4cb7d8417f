// SPDX-License-Identifier: Apache-2.0
// The makers of all methods. Only the table in strategy.cpp calls them. Each reads its options and
// returns the method; the caller then checks SpecOptions::finish().
#pragma once

#include "shared/algorithm/strategy.hpp"

namespace fl {

std::shared_ptr<Strategy> make_fedavg(SpecOptions& options);
std::shared_ptr<Strategy> make_fedprox(SpecOptions& options);
std::shared_ptr<Strategy> make_fedavgm(SpecOptions& options);
std::shared_ptr<Strategy> make_slowmo(SpecOptions& options);
std::shared_ptr<Strategy> make_diloco(SpecOptions& options);
std::shared_ptr<Strategy> make_fedadagrad(SpecOptions& options);
std::shared_ptr<Strategy> make_fedadam(SpecOptions& options);
std::shared_ptr<Strategy> make_fedyogi(SpecOptions& options);
std::shared_ptr<Strategy> make_scaffold(SpecOptions& options);
std::shared_ptr<Strategy> make_fednova(SpecOptions& options);
std::shared_ptr<Strategy> make_feddyn(SpecOptions& options);
std::shared_ptr<Strategy> make_ditto(SpecOptions& options);
std::shared_ptr<Strategy> make_signvote(SpecOptions& options);

}  // namespace fl
