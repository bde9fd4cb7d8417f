// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/encode/encoder.hpp"

#include "kernels/kernels.hpp"
#include "shared/base/async/parallel.hpp"
#include "shared/codec/blocks/lane_block.hpp"
#include "shared/codec/blocks/large_block.hpp"
#include "shared/codec/blocks/sparse_block.hpp"
#include "shared/codec/payload/reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace fl::codec {

namespace {

/// A block while it is encoded.
struct Coded {
  Block block;
  const Rule* rule = nullptr;  // Null: the block is sent dense.
  std::span<const float> values;
  Scan scan;
  Selected selected;  // Used if the rule has a selector.
  std::vector<std::byte> bytes;
  Bytes tail;  // A stream that a device has coded, if it did; it comes after `bytes`.
  Result<void> result;
  bool is_coded = false;
  bool is_copied = false;  // The block is its values as they are, which are not in `bytes`.
};

constexpr std::byte fp32_format = static_cast<std::byte>(BlockFormat::fp32);
/// How many blocks that are only copied are written together: they are in the cache since they were
/// checked.
constexpr std::uint64_t copied_blocks = 4;

Result<void> check_finite(Coded& coded, const Layout& layout) {
  coded.scan = kernels().scan(coded.values.data(), coded.values.size());
  const std::size_t bad = coded.scan.first_bad;
  if (bad == coded.values.size()) return {};
  return Error(Errc::invalid_input,
               fmt::format("{} is {}, not a finite number", layout.describe(coded.block.flat + bad),
                           coded.values[bad]));
}

/// The blocks that are encoded together, before they are written.
struct Batch {
  std::size_t slot = 0;  // The device's slot.
  std::vector<Coded> blocks;
  std::vector<BlockOnDevice> on_device;     // The blocks that a device may code,
  std::vector<std::size_t> device_indices;  // and their indices in `blocks`.
};

/// What a rule's codec needs of the whole vector.
struct Plan {
  SelectionPlan selection;
  CompressorPlan compressor;
};

/// One plan for each rule. `vector`: without its tensors, which are those of the rule.
std::vector<Plan> plan_rules(const VectorToEncode& what, VectorToPlan vector) {
  std::vector<Plan> plans;
  for (const Rule& rule : what.rules) {
    std::vector<std::uint32_t> tensors;
    for (std::uint32_t t = 0; t < what.rule_of.size(); ++t) {
      if (what.rule_of[t] == &rule) tensors.push_back(t);
    }
    vector.tensors = tensors;
    Plan& plan = plans.emplace_back();
    if (rule.selector) {
      plan.selection = rule.selector->plan(vector);
      if (rule.draws_for_all()) plan.compressor = rule.quantizer->plan_selected(vector);
    } else {
      plan.compressor = rule.quantizer->plan(vector);
    }
  }
  return plans;
}

class Encoder {
 public:
  explicit Encoder(const VectorToEncode& what)
      : what_(&what),
        map_(what.map),
        x_(what.x),
        seed_(what.inputs.own),
        device_(on_device(what)),
        device_blocks_(device_ ? device_->coder().batch_blocks() : 0),
        plans_(plan_rules(what, {.layout = &what.map->layout(),
                                 .x = what.x,
                                 .tensors = {},
                                 .block_elements = what.map->block_elements(),
                                 .inputs = what.inputs,
                                 .state = what.state,
                                 .device = device_ ? &*device_ : nullptr})),
        // Plain copying is not worth the buffers of several lanes.
        lanes_(what.threads, what.is_plain ? 1 : map_->blocks() / map_->run_blocks()),
        scratches_(lanes_.count()) {}
  ~Encoder() {
    if (device_) device_->coder().end();
  }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  Result<std::uint64_t> write(PayloadSink& out) {
    // If the sizes are known only at the end, at least the prefix's length is known now.
    const std::vector<std::uint32_t> known = known_sizes();
    std::vector<std::uint32_t> sizes = known;
    sizes.resize(map_->blocks());
    const auto prefix = payload_prefix(*map_, sizes);
    std::uint64_t at = prefix.size();
    if (!known.empty()) FL_CHECK(out.write(0, prefix));
    // While one batch is encoded here and written, a device already works on the next.
    batches_.resize(device_ ? CodecDevice::slots : 1);
    const std::uint64_t batch_count = (map_->blocks() + batch_blocks() - 1) / batch_blocks();
    std::uint64_t begun = 0;
    std::uint64_t index = 0;  // The next block to write.
    std::vector<Bytes> parts;
    for (std::uint64_t number = 0; number < batch_count; ++number) {
      for (; begun < std::min<std::uint64_t>(number + batches_.size(), batch_count); ++begun) {
        Batch& next = batches_[begun % batches_.size()];
        next.slot = begun % batches_.size();
        begin(next, begun * batch_blocks());
      }
      Batch& batch = batches_[number % batches_.size()];
      finish(batch);
      parts.clear();
      std::uint64_t bytes = 0;
      for (const Coded& coded : batch.blocks) {
        if (!coded.result) return coded.result.error().at("encode");
        const std::uint64_t before = bytes;
        for (const Bytes part : parts_of(coded)) {
          parts.push_back(part);
          bytes += part.size();
        }
        sizes[index++] = static_cast<std::uint32_t>(bytes - before);
      }
      FL_CHECK(out.write_parts(at, parts));
      at += bytes;
    }
    if (known.empty())
      FL_CHECK(out.write(0, payload_prefix(*map_, sizes)));
    else
      FL_ASSERT(sizes == known);
    return at;
  }

 private:
  /// The vector on the device. nullopt: the CPU does everything.
  static std::optional<DeviceVector> on_device(const VectorToEncode& what) {
    const DeviceCopy& device = what.device;
    if (device.coder == nullptr || !device.coder->is_there()) return std::nullopt;
    const float* const there =
        device.values != nullptr ? device.values : device.coder->copy(what.x);
    if (there == nullptr) return std::nullopt;
    return DeviceVector(*device.coder, there, what.x);
  }

  /// Whether the block is its values as they are, but for the byte that says so.
  [[nodiscard]] bool is_copied(const Block& block) const {
    if (!what_->is_plain || block.elements > part_elements_max) return false;
    return map_->is_bare(block) || what_->rule_of[block.tensor] != nullptr;
  }
  /// The bytes of each block where all are copied; else none.
  [[nodiscard]] std::vector<std::uint32_t> known_sizes() const {
    std::vector<std::uint32_t> sizes;
    for (std::uint64_t i = 0; what_->is_plain && i < map_->blocks(); ++i) {
      const Block block = map_->at(i);
      if (!is_copied(block)) return {};
      const std::uint64_t values = block.elements * sizeof(float);
      sizes.push_back(static_cast<std::uint32_t>(values + (map_->is_bare(block) ? 0 : 1)));
    }
    return sizes;
  }
  /// The bytes of a coded block, one part behind the other.
  [[nodiscard]] std::array<Bytes, 2> parts_of(const Coded& coded) const {
    if (!coded.is_copied) return {coded.bytes, coded.tail};
    const Bytes values = std::as_bytes(coded.values);
    return {map_->is_bare(coded.block) ? Bytes() : Bytes(&fp32_format, 1), values};
  }

  [[nodiscard]] std::uint64_t batch_blocks() const {
    if (device_) {
      const std::uint64_t each =
          (map_->block_elements() + block_elements_default - 1) / block_elements_default;
      return std::max<std::uint64_t>(1, device_blocks_ / each);
    }
    if (what_->is_plain) return copied_blocks;
    return lanes_.count() == 1 ? 1 : lanes_.count() * map_->run_blocks();
  }

  [[nodiscard]] bool is_of_statistics(const Block& block) const {
    return is_statistic(map_->layout().tensors()[block.tensor].name);
  }

  Plan& plan_of(const Rule& rule) {
    return plans_[static_cast<std::size_t>(&rule - what_->rules.data())];
  }

  /// Starts a batch: gives the device its blocks, and selects, which needs the blocks in order.
  void begin(Batch& batch, std::uint64_t first) {
    batch.blocks.resize(std::min(batch_blocks(), map_->blocks() - first));
    batch.on_device.clear();
    batch.device_indices.clear();
    for (std::size_t i = 0; i < batch.blocks.size(); ++i) {
      Coded& coded = batch.blocks[i];
      coded.block = map_->at(first + i);
      coded.rule = what_->rule_of[coded.block.tensor];
      coded.values = x_.subspan(coded.block.flat, coded.block.elements);
      coded.tail = {};
      coded.is_coded = false;
      coded.is_copied = is_copied(coded.block);
      coded.result = {};
      const LevelCoder* const coder = coded.rule ? coded.rule->level_coder() : nullptr;
      if (!device_ || coder == nullptr || coded.block.elements < coder->elements_min() ||
          coded.block.elements > part_elements_max)
        continue;
      const auto run = coder->level_block(coded.block, seed_, plan_of(*coded.rule).compressor);
      if (!run) continue;
      batch.on_device.push_back({.coder = coder, .block = *run, .head = &coded.bytes});
      batch.device_indices.push_back(i);
    }
    if (device_) device_->coder().start(batch.slot, device_->there(), batch.on_device);
    select(batch.blocks);
  }

  /// The first blocks, of one tensor, from which a device can select at once.
  static std::span<Coded> selected_together(std::span<Coded> blocks) {
    std::uint64_t elements = 0;
    std::size_t count = 0;
    for (; count < blocks.size(); ++count) {
      elements += blocks[count].block.elements;
      const bool is_other = blocks[count].block.tensor != blocks.front().block.tensor;
      if (count > 0 && (is_other || elements > device_select_max)) break;
    }
    return blocks.first(count);
  }

  /// Runs the selectors, which need the blocks in order.
  void select(std::span<Coded> blocks) {
    while (!blocks.empty()) {
      const auto of_tensor = selected_together(blocks);
      blocks = blocks.subspan(of_tensor.size());
      const Rule* const rule = of_tensor.front().rule;
      if (!rule || !rule->selector) continue;
      SelectionPlan& plan = plan_of(*rule).selection;
      if (select_on_device(of_tensor, *rule->selector, plan)) continue;
      for (Coded& coded : of_tensor) {
        coded.result = check_finite(coded, map_->layout());
        if (coded.result)
          rule->selector->select(coded.values, coded.block,
                                 rule->draws_for_all() ? what_->inputs.shared : seed_, plan,
                                 coded.selected);
      }
    }
  }

  /// Selects from consecutive blocks of one tensor. False: the CPU must do it; the cutoff is
  /// unchanged.
  bool select_on_device(std::span<Coded> blocks, const Selector& selector, SelectionPlan& plan) {
    const std::uint64_t first = blocks.front().block.flat;
    const std::uint64_t end = blocks.back().block.flat + blocks.back().block.elements;
    if (!device_ || !device_->coder().is_there() || !selector.has_cutoffs() ||
        end - first < device_elements_min)
      return false;
    Cutoff& cutoff = *selector.cutoff_of(blocks.front().block.tensor, plan);
    const Cutoff before = cutoff;
    if (!device_->select_largest(x_.subspan(first, end - first), cutoff, indices_)) return false;
    auto next = indices_.begin();
    bool is_right = true;
    for (Coded& coded : blocks) {
      const auto begin = static_cast<std::uint32_t>(coded.block.flat - first);
      Selected& out = coded.selected;
      out.key.reset();
      out.room.clear();
      out.values.clear();
      for (; next != indices_.end() && *next - begin < coded.block.elements; ++next) {
        out.room.push_back(*next - begin);
        out.values.push_back(coded.values[out.room.back()]);
      }
      out.indices = out.room;
      // A value that is not finite counts as larger than all others, so the device has selected it.
      // Then the CPU selects again and reports the error.
      is_right &= all_finite(out.values);
    }
    if (is_right && !is_selection_checked_) {
      is_right = selects_as_here(blocks.front(), before);
      is_selection_checked_ = true;
      if (!is_right) give_up("selects", blocks.front());
    }
    if (!is_right) cutoff = before;
    return is_right;
  }

  /// Whether the CPU selects the same elements of the block. One block of each vector is checked.
  static bool selects_as_here(const Coded& coded, Cutoff before) {
    Selected here;
    select_by(before, coded.values, here);
    return std::ranges::equal(here.indices, coded.selected.indices);
  }

  void give_up(std::string_view does, const Coded& coded) {
    device_->coder().give_up(fmt::format("the device {} {} differently from the CPU", does,
                                         map_->layout().describe(coded.block.flat)));
  }

  /// Makes the bytes of all blocks of the batch; a block's `result` has its error.
  void finish(Batch& batch) {
    if (device_) take_from_device(batch);
    lanes_.for_each_run(batch.blocks.size(), std::min<std::size_t>(map_->run_blocks(), 2),
                        [&](std::size_t lane, std::size_t begin, std::size_t end) {
                          for (std::size_t i = begin; i < end; ++i) {
                            if (!batch.blocks[i].is_coded) encode(batch.blocks[i], lane);
                          }
                        });
  }

  void take_from_device(Batch& batch) {
    device_->coder().finish(batch.slot, lanes_);
    for (std::size_t d = 0; d < batch.on_device.size(); ++d) {
      if (!batch.on_device[d].is_coded) continue;
      Coded& coded = batch.blocks[batch.device_indices[d]];
      if (is_checked_) {
        coded.tail = batch.on_device[d].stream;
        coded.is_coded = true;
      } else if (!is_right(coded, batch.on_device[d].stream)) {
        return;
      }
    }
  }

  /// Whether the CPU makes the same bytes. One block of each vector is checked, and then sent as
  /// the CPU made it.
  bool is_right(Coded& coded, Bytes stream) {
    is_checked_ = true;
    auto from_device = coded.bytes;
    from_device.insert(from_device.end(), stream.begin(), stream.end());
    encode(coded, 0);
    coded.is_coded = true;
    if (coded.result && coded.bytes == from_device) return true;
    give_up("codes", coded);
    return false;
  }

  void encode(Coded& coded, std::size_t lane) {
    const Rule* const rule = coded.rule;
    if (rule && rule->selector) {
      if (coded.result)
        coded.result =
            encode_selected_block(coded.selected, *rule->quantizer, map_->layout(), coded.block,
                                  seed_, plan_of(*rule).compressor, scratches_[lane], coded.bytes);
      return;
    }
    coded.result = check_finite(coded, map_->layout());
    if (!coded.result || coded.is_copied) return;
    const bool is_wide = rule == nullptr && what_->adds_lanes && !is_of_statistics(coded.block);
    if (map_->is_bare(coded.block)) {
      coded.bytes.resize(coded.values.size_bytes());
      std::array<float, bare_elements_max> rounded{};
      if (is_wide) round_to_wide(coded.values, rounded);
      const Bytes values = std::as_bytes(is_wide ? std::span<const float>(rounded) : coded.values);
      std::ranges::copy(values.first(coded.bytes.size()), coded.bytes.begin());
      return;
    }
    const Compressor& compressor = rule      ? *rule->quantizer
                                   : is_wide ? wide_compressor()
                                             : dense_compressor();
    coded.result = encode_block(compressor, coded.values, coded.scan, map_->layout(), coded.block,
                                seed_, rule ? plan_of(*rule).compressor : CompressorPlan{},
                                scratches_[lane], coded.bytes);
  }

  const VectorToEncode* what_;
  const BlockMap* map_;
  std::span<const float> x_;
  std::uint64_t seed_;
  std::optional<DeviceVector> device_;
  std::uint64_t device_blocks_;  // How many blocks the device gets at once.
  std::vector<Plan> plans_;
  Lanes lanes_;
  std::vector<EncodeScratch> scratches_;  // One for each lane.
  std::vector<Batch> batches_;
  std::vector<std::uint32_t> indices_;  // The indices that select_on_device() selected.
  bool is_checked_ = false;
  bool is_selection_checked_ = false;
};

}  // namespace

Result<std::uint64_t> encode_vector(const VectorToEncode& what, PayloadSink& out) {
  return Encoder(what).write(out);
}

}  // namespace fl::codec
