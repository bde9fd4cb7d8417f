// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/encode/codec.hpp"

#include "shared/codec/device/device_levels.hpp"
#include "shared/codec/encode/encoder.hpp"
#include "shared/codec/payload/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace fl::codec {

namespace {

bool has_lanes(const Rule* rule) { return rule != nullptr && rule->lane_bits() > 0; }

}  // namespace

std::string Codec::canonical() const {
  std::string text;
  for (const Rule& rule : rules_) text += (text.empty() ? "" : ";") + rule.spec();
  if (upkeep_.is_delta) return std::string(delta_prefix) + text;
  if (upkeep_.momentum > 0) return text + fmt::format("+dgc:{}", upkeep_.momentum);
  return text + feedback();
}

std::string Codec::feedback() const {
  if (!upkeep_.error_feedback) return "";
  return upkeep_.keep == 1 ? "+ef" : fmt::format("+ef:{}", upkeep_.keep);
}

std::vector<std::string> Codec::names() const {
  std::vector<std::string> out;
  if (upkeep_.is_delta) out.emplace_back(delta_codec);
  const auto add = [&](const std::string& spec) {
    std::string name = spec.substr(0, spec.find_first_of(":,"));
    if (std::ranges::find(out, name) == out.end()) out.push_back(std::move(name));
  };
  for (const Rule& rule : rules_) {
    if (rule.selector) add(rule.selector->spec());
    add(rule.quantizer->spec());
  }
  return out;
}

bool Codec::is_for_device(const Layout& layout, bool is_there) const {
  const auto rule_of = rules_of(layout);
  for (std::size_t t = 0; t < rule_of.size(); ++t) {
    if (rule_of[t] != nullptr && rule_of[t]->is_for_device(layout.tensors()[t], is_there))
      return true;
  }
  return false;
}

SummedSketches Codec::summed_sketches(const Layout& layout) const {
  SummedSketches out{.block_elements = block_elements(layout)};
  bool is_any = false;
  for (const Rule* const rule : rules_of(layout)) {
    out.of_tensor.push_back(rule != nullptr ? rule->summed_sketch() : std::nullopt);
    is_any |= out.of_tensor.back().has_value();
  }
  if (!is_any) return {};
  return out;
}

std::vector<int> Codec::lane_bits(const Layout& layout) const {
  std::vector<int> out;
  for (const Rule* const rule : rules_of(layout))
    out.push_back(rule != nullptr ? rule->lane_bits() : 0);
  if (std::ranges::all_of(out, [](int bits) { return bits == 0; })) return {};
  return out;
}

Result<std::vector<LaneRun>> Codec::lane_runs(const Layout& layout, const LaneSteps& steps) const {
  FL_ASSERT(steps.size() == layout.tensors().size());
  const auto rule_of = rules_of(layout);
  const auto cannot = [&](const Layout::Tensor& tensor, std::string_view why) {
    return Error(Errc::invalid_input, fmt::format("updates by {} can't be added up unread: {} {}",
                                                  canonical(), tensor.name, why));
  };
  const BlockMap map(layout, block_elements(layout));
  std::vector<LaneRun> runs;
  for (std::uint64_t i = 0; i < map.blocks(); ++i) {
    const Block block = map.at(i);
    const Layout::Tensor& tensor = layout.tensors()[block.tensor];
    const Rule* const rule = rule_of[block.tensor];
    if (is_statistic(tensor.name)) return cannot(tensor, "is a statistic, which is sent exactly");
    LaneRun run{.block = block, .values = block.elements, .is_bare = map.is_bare(block)};
    if (rule != nullptr) {
      run.bits = rule->lane_bits();
      if (run.bits == 0) return cannot(tensor, "is not coded by lanes");
      run.step = steps[block.tensor];
      run.has_dither = run.step.is_set() && !error_feedback() && !is_delta();
      run.is_selected = rule->selector != nullptr;
      if (run.is_selected) {
        run.values = static_cast<std::uint32_t>(
            rule->selector->selected_max(tensor.elements, block.elements));
      }
    }
    if (run.values > part_elements_max)
      return cannot(tensor, "shares a codec with tensors of which few values are sent");
    runs.push_back(run);
  }
  return runs;
}

std::vector<std::optional<FactorForm>> Codec::factor_forms(const Layout& layout) const {
  std::vector<std::optional<FactorForm>> out;
  const auto rule_of = rules_of(layout);
  for (std::size_t t = 0; t < rule_of.size(); ++t)
    out.push_back(rule_of[t] ? rule_of[t]->factor_form(layout.tensors()[t]) : std::nullopt);
  return out;
}

std::uint32_t Codec::block_elements(const Layout& layout) const {
  bool is_any_few = false;
  const auto rule_of = rules_of(layout);
  for (std::size_t t = 0; t < rule_of.size(); ++t) {
    const Rule* const rule = rule_of[t];
    if (rule == nullptr || layout.tensors()[t].elements <= block_elements_default) continue;
    is_any_few |= rule->sends_few();
    // Small blocks suit selectors that send many values, levels that a device could code, and
    // sketches that are added up undecoded.
    const LevelCoder* const coder = rule->level_coder();
    const bool is_for_device = coder != nullptr && coder->is_worth_small_blocks();
    if (rule->summed_sketch() || (!rule->sends_few() && (rule->selector || is_for_device)))
      return block_elements_default;
  }
  return is_any_few ? block_elements_max : block_elements_default;
}

std::vector<const Rule*> Codec::rules_of(const Layout& layout) const {
  std::vector<const Rule*> out;
  for (const Layout::Tensor& tensor : layout.tensors()) {
    const auto rule =
        std::ranges::find_if(rules_, [&](const Rule& r) { return r.fits(tensor.name); });
    FL_ASSERT(rule != rules_.end());
    out.push_back(rule->sends_dense(tensor) ? nullptr : &*rule);
  }
  return out;
}

std::uint64_t Codec::payload_bytes_max(const Layout& layout, std::uint32_t block_elements) const {
  if (block_elements == block_elements_of_codec) block_elements = this->block_elements(layout);
  const BlockMap map(layout, block_elements);
  const auto rule_of = rules_of(layout);
  const Compressor& dense =
      std::ranges::any_of(rule_of, has_lanes) ? wide_compressor() : dense_compressor();
  std::uint64_t bytes = payload_header_bytes;
  // Bare blocks count as others: a client may send them like others (reader.hpp).
  for (std::uint64_t i = 0; i < map.blocks(); ++i) {
    const Block block = map.at(i);
    const Rule* const rule = rule_of[block.tensor];
    bytes += sizeof(std::uint32_t);
    bytes += rule ? rule->block_bytes_max(layout.tensors()[block.tensor], block)
                  : dense.bytes_max_of(layout.tensors()[block.tensor], block);
  }
  return bytes;
}

Result<std::uint64_t> Codec::encode(const Layout& layout, std::span<const float> x,
                                    CodeInputs inputs, PayloadSink& out,
                                    std::uint32_t block_elements, CodecState* state, int threads,
                                    const DeviceCopy& device) const {
  FL_ASSERT(x.size() == layout.elements() && threads >= 0);
  const std::uint32_t largest = this->block_elements(layout);
  if (block_elements == block_elements_of_codec) block_elements = largest;
  FL_ASSERT(block_elements <= largest);
  const BlockMap map(layout, block_elements);
  const auto rule_of = rules_of(layout);
  const bool is_for_it = device.coder != nullptr && device.coder->is_there() &&
                         is_for_device(layout, device.values != nullptr);
  return encode_vector(
      {.rules = rules_,
       .rule_of = rule_of,
       .map = &map,
       .x = x,
       .inputs = inputs,
       .state = state,
       .threads = threads,
       .adds_lanes = inputs.lane_steps != nullptr && std::ranges::any_of(rule_of, has_lanes),
       .is_plain = is_plain(),
       .device = is_for_it ? device : DeviceCopy()},
      out);
}

}  // namespace fl::codec
