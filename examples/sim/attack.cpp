// SPDX-License-Identifier: Apache-2.0
#include "examples/sim/attack.hpp"

#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl {

namespace {

constexpr std::uint32_t trigger_side = 4;

void put_trigger(ImageSet& images, std::uint32_t index) {
  const std::size_t first = std::size_t{index} * images.rows * images.columns;
  for (std::uint32_t row = 0; row < std::min(trigger_side, images.rows); ++row) {
    for (std::uint32_t column = 0; column < std::min(trigger_side, images.columns); ++column)
      images.pixels[first + std::size_t{row} * images.columns + column] = 255;
  }
}

}  // namespace

Result<Attack> parse_attack(std::string_view spec) {
  struct Row {
    std::string_view name;
    Attack attack;
    bool has_strength;
  };
  using Kind = Attack::Kind;
  constexpr Row rows[] = {{"none", {Kind::none, 1}, false},
                          {"sign-flip", {Kind::sign_flip, 1}, true},
                          {"ipm", {Kind::ipm, 0.5}, true},
                          {"alie", {Kind::alie, 1.5}, true},
                          {"label-flip", {Kind::label_flip, 1}, false},
                          {"backdoor", {Kind::backdoor, 1}, true}};
  const auto [name, argument] = cut(spec, ':');
  for (const Row& row : rows) {
    if (row.name != name || (argument && !row.has_strength)) continue;
    Attack attack = row.attack;
    if (!argument) return attack;
    const auto strength = number_in<double>(*argument);
    if (!strength || !std::isfinite(*strength) || *strength < 0) break;
    attack.strength = *strength;
    return attack;
  }
  return Error(Errc::invalid_input,
               fmt::format("'{}' is no attack; choose none, sign-flip[:S], ipm[:S], alie[:Z], "
                           "label-flip or backdoor[:S], with a number of 0 or more",
                           spec));
}

void poison(const Attack& attack, ImageSet& train) {
  for (std::uint32_t i = 0; i < train.size(); ++i) {
    if (attack.kind == Attack::Kind::label_flip)
      train.labels[i] = static_cast<std::uint8_t>(image_classes - 1 - train.labels[i]);
    if (attack.kind == Attack::Kind::backdoor && i % 2 == 0) {
      put_trigger(train, i);
      train.labels[i] = 0;
    }
  }
}

void HonestUpdates::add(std::span<const float> update) {
  mean_.resize(update.size());
  squares_.resize(update.size());
  ++count_;
  for (std::size_t i = 0; i < update.size(); ++i) {
    const double difference = static_cast<double>(update[i]) - mean_[i];
    mean_[i] += difference / static_cast<double>(count_);
    squares_[i] += difference * (static_cast<double>(update[i]) - mean_[i]);
  }
}

void HonestUpdates::write(const Attack& attack, std::span<float> out) const {
  const double others = std::max(1.0, static_cast<double>(count_) - 1);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double deviation = std::sqrt(squares_[i] / others);
    const double value = attack.kind == Attack::Kind::ipm ? -attack.strength * mean_[i]
                                                          : mean_[i] - attack.strength * deviation;
    out[i] = static_cast<float>(value);
  }
}

}  // namespace fl
