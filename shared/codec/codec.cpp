#include "shared/codec/codec.hpp"

#include "kernels/kernels.hpp"
#include "shared/base/parallel.hpp"
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

namespace {

/// A block on its way.
struct Coded {
  Block block;
  const Rule* rule = nullptr;  // None: it is sent dense.
  std::span<const float> values;
  Scan scan;
  Selected selected;  // Where the rule selects.
  std::vector<std::byte> bytes;
  Result<void> result;
};

Result<void> check_finite(Coded& coded, const Layout& layout) {
  coded.scan = kernels().scan(coded.values.data(), coded.values.size());
  const std::size_t bad = coded.scan.first_bad;
  if (bad == coded.values.size()) return {};
  return Error(Errc::invalid_input,
               fmt::format("{} is {}", layout.describe(coded.block.flat + bad), coded.values[bad]));
}

}  // namespace

Result<std::uint64_t> Codec::encode(const Layout& layout, std::span<const float> x,
                                    std::uint64_t seed, PayloadSink& out,
                                    std::uint32_t block_elements, CodecState* state,
                                    int threads) const {
  FL_ASSERT(x.size() == layout.elements() && threads >= 0);
  const BlockMap map(layout, block_elements);
  const auto rule_of = rules_of(layout);
  auto plans = plan(layout, x, rule_of, seed, state);
  const auto plan_of = [&](const Rule& rule) -> Plan& {
    return plans[static_cast<std::size_t>(&rule - rules_.data())];
  };
  const auto encode_one = [&](Coded& coded, EncodeScratch& scratch) -> Result<void> {
    const Rule* const rule = coded.rule;
    if (rule && rule->selector)
      return encode_selected(coded.selected, *rule->quantizer, layout, coded.block, seed, scratch,
                             coded.bytes);
    const Method& method = rule ? *rule->quantizer : dense_method();
    return method.encode(coded.values, coded.scan, layout, coded.block, seed,
                         rule ? plan_of(*rule).method : MethodPlan{}, scratch, coded.bytes);
  };

  std::vector<std::uint32_t> sizes(map.blocks());
  // The sizes are known only at the end; the prefix has its length already.
  std::uint64_t at = payload_prefix(map, canonical(), sizes).size();
  // What is only copied is not worth their buffers.
  Lanes lanes(threads, is_exact() ? 1 : map.blocks() / run_blocks);
  // What all encode between two writes.
  std::vector<Coded> batch(
      std::min<std::uint64_t>(map.blocks(), lanes.count() == 1 ? 1 : lanes.count() * run_blocks));
  std::vector<EncodeScratch> scratches(lanes.count());
  for (std::uint64_t first = 0; first < map.blocks(); first += batch.size()) {
    const std::size_t count = std::min(batch.size(), map.blocks() - first);
    for (std::size_t i = 0; i < count; ++i) {
      Coded& coded = batch[i];
      coded.block = map.at(first + i);
      coded.rule = rule_of[coded.block.tensor];
      coded.values = x.subspan(coded.block.flat, coded.block.elements);
      if (!coded.rule || !coded.rule->selector) continue;
      // Selectors want the blocks in order.
      coded.result = check_finite(coded, layout);
      if (coded.result)
        coded.rule->selector->select(coded.values, coded.block, seed,
                                     plan_of(*coded.rule).selection, coded.selected);
    }
    const auto encode_run = [&](std::size_t lane, std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        Coded& coded = batch[i];
        if (!coded.rule || !coded.rule->selector) coded.result = check_finite(coded, layout);
        if (coded.result) coded.result = encode_one(coded, scratches[lane]);
      }
    };
    lanes.for_each_run(count, 2, encode_run);
    for (std::size_t i = 0; i < count; ++i) {
      const Coded& coded = batch[i];
      if (!coded.result) return coded.result.error().at("encode");
      FL_CHECK(out.write(at, coded.bytes));
      sizes[first + i] = static_cast<std::uint32_t>(coded.bytes.size());
      at += coded.bytes.size();
    }
  }
  FL_CHECK(out.write(0, payload_prefix(map, canonical(), sizes)));
  return at;
}

}  // namespace fl
