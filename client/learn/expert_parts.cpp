// SPDX-License-Identifier: Apache-2.0
#include "client/learn/expert_parts.hpp"

#include <fmt/format.h>

#include <string>

namespace fl {

Result<ExpertWay> parse_expert_way(std::string_view text) {
  if (text == "direct") return ExpertWay::direct;
  if (text == "two-hops") return ExpertWay::two_hops;
  return Error(Errc::invalid_input, fmt::format("'{}' is neither direct nor two-hops", text));
}

Result<void> check_experts(const ModelSpec& spec, std::string_view model,
                           const ExpertDivision& division) {
  const std::int64_t ranks = division.ranks;
  if (ranks == 1) return {};
  const auto refuse = [&](const std::string& why) {
    return Error(Errc::invalid_input,
                 fmt::format("--parallel ep={} can't divide model {}: {}", ranks, model, why));
  };
  if (spec.experts.count == 0)
    return refuse("it has no experts, as transformer:...,experts=N would have");
  if (spec.experts.count % ranks != 0)
    return refuse(fmt::format("its {} experts are no multiple of {}", spec.experts.count, ranks));
  return {};
}

}  // namespace fl
