// SPDX-License-Identifier: Apache-2.0
#include "server/run/round_mode.hpp"

#include "shared/base/spec/spec_options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl::server {

std::uint64_t RoundMode::discounted(std::uint64_t weight, Round staleness) const {
  if (unit() == 1) return weight;
  const double age = 1 + static_cast<double>(staleness);
  double part = 1;
  switch (discount) {
    case Discount::constant: break;
    case Discount::inverse: part = 1 / age; break;
    case Discount::sqrt: part = 1 / std::sqrt(age); break;
    case Discount::exponential:  // A product, as pow() differs between libraries.
      for (Round i = 0; i < staleness; ++i) part *= base;
      break;
  }
  const double units = std::round(static_cast<double>(weight * unit()) * part);
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(units));
}

Result<RoundMode> parse_mode(std::string_view spec) {
  FL_TRY(auto options, SpecOptions::parse(spec));
  RoundMode mode;
  mode.is_async = options.name() == "async";
  if (!mode.is_async && options.name() != "sync") {
    return Error(Errc::invalid_input,
                 fmt::format("'{}': there is no such mode; choose sync or async", spec));
  }
  const std::string_view discount =
      options.word("weight", {"sqrt", "constant", "inverse", "exponential"});
  mode.discount = discount == "constant"  ? RoundMode::Discount::constant
                  : discount == "inverse" ? RoundMode::Discount::inverse
                  : discount == "sqrt"    ? RoundMode::Discount::sqrt
                                          : RoundMode::Discount::exponential;
  constexpr double not_given = 0;
  const double base = options.number_below("base", not_given, 0.01, 1);
  if (mode.is_async) {
    mode.late_max = options.count("late", 20, 1);
    mode.buffer = options.count("buffer", 10, 1);
    mode.ahead = options.count("ahead", 0, 1);
    mode.sync_every = options.count("sync", 0, 1);
    mode.compensation = options.number("compensate", 0, 0, 1e6);
  } else {
    mode.late_max = options.count("late", 0, 0);
  }
  FL_CHECK(options.finish());
  if (base != not_given && mode.discount != RoundMode::Discount::exponential) {
    return Error(Errc::invalid_input,
                 fmt::format("'{}': base= is for weight=exponential, not for {}", spec, discount));
  }
  if (base != not_given) mode.base = base;
  return mode;
}

}  // namespace fl::server
