// SPDX-License-Identifier: Apache-2.0
#include "examples/sim/drop_outs.hpp"

#include "shared/base/io/digest.hpp"
#include "shared/secure/messages.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string_view>

namespace fl::sim {

namespace {

constexpr std::array breaking{wire::Header::kBegin,         wire::Header::kChunk,
                              wire::Header::kSecureKeys,    wire::Header::kSecureShares,
                              wire::Header::kSecureConsent, wire::Header::kSecureReveal};
constexpr std::size_t breaking_in_clear = 2;  // Those that a run in the clear has.

}  // namespace

/// The message at which the client drops out of a task.
std::optional<wire::Header::KindCase> DropOuts::drawn_for(std::int64_t task) const {
  const std::string identity = fmt::format("{}/{}/{}", seed_, client_, task);
  const std::uint64_t drawn = Digest::of(bytes_of(std::string_view(identity))).short_id();
  // The upper half decides whether it drops out, the lower one where.
  if (std::ldexp(static_cast<double>(drawn >> 32), -32) >= options_.chance) return std::nullopt;
  return breaking[(drawn & 0xFFFFFFFF) % (is_masked_ ? breaking.size() : breaking_in_clear)];
}

bool DropOuts::breaks_at(const wire::Header& message) {
  if (options_.chance == 0) return false;
  std::int64_t task = secure::subject_of(message).task;
  if (message.has_begin()) task = uploaded_ = message.begin().task();
  if (message.has_chunk()) task = uploaded_;
  if (task == 0 || task == dropped_ || drawn_for(task) != message.kind_case()) return false;
  dropped_ = task;
  return true;
}

}  // namespace fl::sim
