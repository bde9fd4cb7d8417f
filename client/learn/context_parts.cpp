// SPDX-License-Identifier: Apache-2.0
#include "client/learn/context_parts.hpp"

#include <fmt/format.h>

#include <string>

namespace fl {

namespace {

struct WayName {
  std::string_view name;
  ContextWay way;
};
constexpr WayName way_names[] = {
    {"ring", ContextWay::ring}, {"gather", ContextWay::gather}, {"ulysses", ContextWay::ulysses}};

}  // namespace

Result<ContextWay> parse_context_way(std::string_view text) {
  for (const auto& [name, way] : way_names)
    if (text == name) return way;
  return Error(Errc::invalid_input, fmt::format("'{}' is none of ring, gather and ulysses", text));
}

Result<void> check_context(const ModelSpec& spec, std::string_view model,
                           const ContextDivision& division, const TensorDivision& layers) {
  const std::int64_t ranks = division.ranks;
  if (ranks == 1) return {};
  const auto refuse = [&](const std::string& why) {
    return Error(Errc::invalid_input,
                 fmt::format("--parallel cp={} can't divide model {}: {}", ranks, model, why));
  };
  if (spec.family != ModelSpec::Family::transformer)
    return refuse("only the texts of a transformer are divided; dp divides the batches of any");
  const bool is_ulysses = division.way == ContextWay::ulysses;
  const std::int64_t chunks = is_ulysses ? ranks : 2 * ranks;
  if (spec.input[0] % chunks != 0)
    return refuse(fmt::format("its context of {} tokens is no multiple of {}{}", spec.input[0],
                              chunks, is_ulysses ? "" : ", as each rank has two parts of it"));
  if (is_ulysses && spec.heads % (layers.ranks * ranks) != 0)
    return refuse(
        fmt::format("--context-parallel ulysses divides its {} heads, which are no "
                    "multiple of {}",
                    spec.heads, layers.ranks * ranks));
  if (layers.divides_tokens && spec.input[0] / ranks % layers.ranks != 0)
    return refuse(
        fmt::format("--sequence-parallel divides a rank's {} tokens once more, which "
                    "are no multiple of tp={}",
                    spec.input[0] / ranks, layers.ranks));
  return {};
}

std::vector<std::int64_t> chunks_of(const ContextDivision& division, std::int64_t rank) {
  // With a causal mask later chunks are more work: one early and one late chunk are as much for
  // all. Ulysses divides heads, and needs the tokens in their order.
  if (division.way == ContextWay::ulysses) return {rank};
  return {rank, 2 * division.ranks - 1 - rank};
}

std::vector<std::int64_t> places_of(const ContextDivision& division, std::int64_t rank,
                                    std::int64_t context) {
  const std::vector<std::int64_t> chunks = chunks_of(division, rank);
  const std::int64_t own = context / division.ranks;
  const std::int64_t length = own / static_cast<std::int64_t>(chunks.size());
  std::vector<std::int64_t> places;
  places.reserve(static_cast<std::size_t>(own));
  for (const std::int64_t chunk : chunks)
    for (std::int64_t i = 0; i < length; ++i) places.push_back(chunk * length + i);
  return places;
}

}  // namespace fl
