#include "shared/codec/codec.hpp"

#include "kernels/kernels.hpp"
#include "shared/codec/payload.hpp"
#include "shared/codec/sparse.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl {

namespace {

const Method& dense_method() {
  static const auto method = make_fp32();
  return *method;
}

}  // namespace

std::string Codec::canonical() const {
  std::string text;
  for (const Rule& rule : rules_) text += (text.empty() ? "" : ";") + rule.spec();
  if (momentum_ > 0) return text + fmt::format("+dgc:{}", momentum_);
  return text + (error_feedback_ ? "+ef" : "");
}

std::vector<std::string> Codec::names() const {
  std::vector<std::string> out;
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

std::vector<Codec::Plan> Codec::plan(const Layout& layout, std::span<const float> x,
                                     std::span<const Rule* const> rule_of, std::uint64_t seed,
                                     CodecState* state) const {
  std::vector<Plan> plans;
  for (const Rule& rule : rules_) {
    std::vector<std::uint32_t> tensors;
    for (std::uint32_t t = 0; t < rule_of.size(); ++t) {
      if (rule_of[t] == &rule) tensors.push_back(t);
    }
    Plan& plan = plans.emplace_back();
    if (rule.selector) {
      plan.selection = rule.selector->plan(layout, x, tensors, state);
    } else {
      plan.method = rule.quantizer->plan(layout, x, tensors, seed, state);
    }
  }
  return plans;
}

std::uint64_t Codec::payload_bytes_max(const Layout& layout, std::uint32_t block_elements) const {
  const BlockMap map(layout, block_elements);
  const auto rule_of = rules_of(layout);
  std::uint64_t bytes = payload_header_bytes + canonical().size();
  for (std::uint64_t i = 0; i < map.blocks(); ++i) {
    const Block block = map.at(i);
    const Rule* const rule = rule_of[block.tensor];
    bytes +=
        sizeof(std::uint32_t) + (rule ? rule->block_bytes_max(layout.tensors()[block.tensor], block)
                                      : dense_method().block_bytes_max(block.elements));
  }
  return bytes;
}

Result<std::uint64_t> Codec::encode(const Layout& layout, std::span<const float> x,
                                    std::uint64_t seed, PayloadSink& out,
                                    std::uint32_t block_elements, CodecState* state) const {
  FL_ASSERT(x.size() == layout.elements());
  const BlockMap map(layout, block_elements);
  const auto rule_of = rules_of(layout);
  auto plans = plan(layout, x, rule_of, seed, state);
  Selected selected;
  std::vector<std::uint32_t> sizes(map.blocks());
  // The sizes are known only at the end; the prefix has its length already.
  std::uint64_t at = payload_prefix(map, canonical(), sizes).size();
  std::vector<std::byte> bytes;
  EncodeScratch scratch;
  for (std::uint64_t i = 0; i < map.blocks(); ++i) {
    const Block block = map.at(i);
    const auto values = x.subspan(block.flat, block.elements);
    const Scan scan = kernels().scan(values.data(), values.size());
    if (scan.first_bad != values.size()) {
      return Error(Errc::invalid_input,
                   fmt::format("encode: {} is {}", layout.describe(block.flat + scan.first_bad),
                               values[scan.first_bad]));
    }
    const Rule* const rule = rule_of[block.tensor];
    const auto encoded = [&]() -> Result<void> {
      if (!rule)
        return dense_method().encode(values, scan, layout, block, seed, {}, scratch, bytes);
      Plan& of_rule = plans[static_cast<std::size_t>(rule - rules_.data())];
      if (!rule->selector) {
        return rule->quantizer->encode(values, scan, layout, block, seed, of_rule.method, scratch,
                                       bytes);
      }
      rule->selector->select(values, block, seed, of_rule.selection, selected);
      return encode_selected(selected, *rule->quantizer, layout, block, seed, scratch, bytes);
    }();
    if (!encoded) return encoded.error().at("encode");
    FL_CHECK(out.write(at, bytes));
    sizes[i] = static_cast<std::uint32_t>(bytes.size());
    at += bytes.size();
  }
  FL_CHECK(out.write(0, payload_prefix(map, canonical(), sizes)));
  return at;
}

}  // namespace fl
