#include "shared/codec/device_coder.hpp"

#include "shared/base/log.hpp"

#include <utility>

namespace fl {

void DeviceCoder::give_up(std::string_view why) {
  if (!device_) return;
  log_warn("updates are coded on the CPU from now on: {}", why);
  device_.reset();
}

bool DeviceCoder::is_good(int error) {
  if (error == 0) return true;
  give_up(device_->error_text(error));
  return false;
}

void DeviceCoder::end() {
  for (std::size_t number = 0; number < slots_.size(); ++number) {
    std::span<const LevelTally> unused;
    if (device_ && !slots_[number].blocks.empty())
      static_cast<void>(is_good(device_->tallies(number, unused)));
    slots_[number].blocks = {};
  }
}

void DeviceCoder::start(std::size_t number, const float* vector, std::span<BlockOnDevice> blocks) {
  FL_ASSERT(blocks.size() <= LevelDevice::batch_blocks_max);
  Slot& slot = slots_[number];
  slot.blocks = {};
  if (!device_ || blocks.empty()) return;
  slot.runs.clear();
  for (const BlockOnDevice& block : blocks) {
    const LevelBlock& run = block.block;
    FL_ASSERT(run.elements <= device_block_max);
    if (run.rounding == LevelRounding::stochastic) {
      FL_ASSERT(run.levels <= device_levels_max && bucket_count(run) <= device_buckets_max);
    } else {
      FL_ASSERT(run.most <= run.step * (device_levels_max - 0.5f));
    }
    slot.runs.push_back(run);
  }
  if (is_good(device_->start(number, vector, slot.runs))) slot.blocks = blocks;
}

void DeviceCoder::finish(std::size_t number) {
  Slot& slot = slots_[number];
  if (!device_ || slot.blocks.empty()) return;
  const auto blocks = std::exchange(slot.blocks, {});
  std::span<const LevelTally> tallies;
  if (!is_good(device_->tallies(number, tallies))) return;
  slot.codes.clear();
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const BlockOnDevice& block = blocks[b];
    slot.codes.push_back(block.coder->level_code(block.block, tallies[b], *block.out));
  }
  if (!is_good(device_->code(number, slot.codes))) return;
  slot.streams.resize(blocks.size());
  std::span<const std::uint32_t> bytes;
  if (!is_good(device_->streams(number, slot.streams, bytes))) return;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (slot.codes[b].top == 0 || bytes[b] > slot.codes[b].bytes_max) continue;
    const auto stream = std::as_bytes(slot.streams[b]);
    std::vector<std::byte>& out = *blocks[b].out;
    out.insert(out.end(), stream.begin(), stream.end());
    blocks[b].is_coded = true;
    ++blocks_coded_;
  }
}

}  // namespace fl
