// SPDX-License-Identifier: Apache-2.0
// Features: what an end of a session can do that not every end of this protocol_version can. Hello
// and Welcome list them by name. An end uses a feature only if the other end has it; where it can't
// do without one, it refuses the other end and names the feature. Names that an end does not know
// mean nothing to it. features.cpp has the table of them. Pure functions; any thread.
#pragma once

#include "proto/wire.pb.h"
#include "shared/base/error.hpp"

#include <cstdint>
#include <string_view>

namespace fl {

enum class Feature { evaluation, renewal, summaries, notices, clip_norm, secure_aggregation };
enum class End { client, server };

/// The features of one end.
class Features {
 public:
  /// None.
  Features() = default;
  /// All that this release offers at that end.
  [[nodiscard]] static Features of(End end);
  /// Those of an end that sends no list.
  [[nodiscard]] static Features before_lists(End end);
  /// Errors: protocol, if the list is longer than limits::features_max, or one of its names is not
  /// a feature's name at all or longer than limits::feature_name_bytes_max.
  [[nodiscard]] static Result<Features> read(const wire::Hello& hello);
  [[nodiscard]] static Result<Features> read(const wire::Welcome& welcome);
  [[nodiscard]] wire::Features to_wire() const;

  [[nodiscard]] bool has(Feature feature) const { return (bits_ & bit(feature)) != 0; }
  [[nodiscard]] Features without(Feature feature) const { return Features(bits_ & ~bit(feature)); }
  bool operator==(const Features&) const = default;

 private:
  explicit Features(std::uint32_t bits) : bits_(bits) {}
  static std::uint32_t bit(Feature feature) {
    return std::uint32_t{1} << static_cast<int>(feature);
  }
  [[nodiscard]] static Result<Features> read(const wire::Features& list);

  std::uint32_t bits_ = 0;
};

/// Errors: invalid_input, which names the feature, if the other end lacks it. `user` is what can't
/// do without it: "this run", "an evaluator". `theirs` are the features of that `end`.
[[nodiscard]] Result<void> demand(const Features& theirs, End end, Feature feature,
                                  std::string_view user);

}  // namespace fl
