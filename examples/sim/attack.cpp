// SPDX-License-Identifier: Apache-2.0
#include "examples/sim/attack.hpp"

#include "shared/base/spec/nearest_name.hpp"
#include "shared/base/spec/spec_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fl::sim {

namespace {

constexpr std::size_t trigger_side = 4;

/// Makes the first pixels of the first rows of an image white, in all channels.
void put_trigger(std::span<std::byte> image, std::span<const std::int64_t> shape) {
  const auto rows = static_cast<std::size_t>(shape[1]);
  const auto columns = static_cast<std::size_t>(shape[2]);
  for (std::size_t line = 0; line < static_cast<std::size_t>(shape[0]) * rows; ++line) {
    if (line % rows < trigger_side)
      std::ranges::fill(image.subspan(line * columns, std::min(trigger_side, columns)),
                        std::byte{255});
  }
}

/// Puts the trigger into every second image and gives it the label 0.
void put_triggers(DataSet& train) {
  const auto bytes = train.inputs.bytes();
  std::vector<std::byte> pixels(bytes.begin(), bytes.end());
  const std::size_t row = train.row_bytes();
  for (std::size_t i = 0; i < train.labels.size(); i += 2) {
    put_trigger(std::span(pixels).subspan(i * row, row), train.shape);
    train.labels[i] = 0;
  }
  train.inputs = Storage(std::move(pixels));
}

using Kind = Attack::Kind;
constexpr AttackRow attacks[] = {
    {"none", "none", {Kind::none, 1}},
    {"sign-flip", "sign-flip[:S]", {Kind::sign_flip, 1}, true},
    {"ipm", "ipm[:S]", {Kind::ipm, 0.5}, true},
    {"alie", "alie[:Z]", {Kind::alie, 1.5}, true},
    {"label-flip", "label-flip", {Kind::label_flip, 1}},
    {"backdoor", "backdoor[:S]", {Kind::backdoor, 1}, true},
};

}  // namespace

std::span<const AttackRow> attack_rows() { return attacks; }

Result<Attack> parse_attack(std::string_view spec) {
  const auto [name, argument] = cut(spec, ':');
  for (const AttackRow& row : attacks) {
    if (row.name != name || (argument && !row.has_strength)) continue;
    Attack attack = row.attack;
    if (!argument) return attack;
    const auto strength = number_in<double>(*argument);
    if (!strength || !std::isfinite(*strength) || *strength < 0) break;
    attack.strength = *strength;
    return attack;
  }
  return Error(Errc::invalid_input,
               fmt::format("'{}' is no attack; choose {}, with a number of 0 or more{}", spec,
                           alternatives(attacks, &AttackRow::usage),
                           did_you_mean(name, attacks, &AttackRow::name)));
}

Result<void> poison(const Attack& attack, DataSet& train) {
  const bool flips = attack.kind == Attack::Kind::label_flip;
  const bool triggers = attack.kind == Attack::Kind::backdoor;
  if ((flips || triggers) && train.labels.empty())
    return Error(Errc::invalid_input, "this attack needs data with classes");
  if (triggers && train.kind != DataSet::Kind::pixels)
    return Error(Errc::invalid_input, "the attack backdoor needs images");
  if (flips) {
    for (std::uint32_t& label : train.labels) label = train.classes - 1 - label;
  }
  if (triggers) put_triggers(train);
  return {};
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

}  // namespace fl::sim
