// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/device/device_coder.hpp"

#include "shared/base/log.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <utility>

namespace fl::codec {

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

std::span<const float> DeviceVector::there(std::span<const float> here) const {
  FL_ASSERT(here.empty() || (here.data() >= here_.data() && &here.back() <= &here_.back()));
  return here.empty() ? std::span<const float>()
                      : std::span(there_ + (here.data() - here_.data()), here.size());
}

std::optional<Cutoff> DeviceVector::find_largest(std::span<const std::span<const float>> runs,
                                                 std::uint64_t k) {
  std::vector<std::span<const float>> runs_there;
  std::uint64_t elements = 0;
  for (const auto& run : runs) {
    if (!run.empty()) runs_there.push_back(there(run));
    elements += run.size();
  }
  if (elements < device_elements_min || elements >> 32 != 0) return std::nullopt;
  Cutoff cutoff{};
  if (!coder_->ask([&](CodecDevice& device) { return device.find_largest(runs_there, k, cutoff); }))
    return std::nullopt;
  if (!std::exchange(is_cutoff_checked_, true) && !is_cutoff_of(runs, k, cutoff)) {
    coder_->give_up("the device's cutoff is wrong");
    return std::nullopt;
  }
  return cutoff;
}

bool DeviceVector::select_largest(std::span<const float> run, Cutoff& cutoff,
                                  std::vector<std::uint32_t>& indices) {
  FL_ASSERT(run.size() <= device_select_max);
  Cutoff left = cutoff;
  if (!coder_->ask(
          [&](CodecDevice& device) { return device.select_largest(there(run), left, indices); }))
    return false;
  // The caller uses the indices without a check.
  const bool ascend = std::ranges::adjacent_find(indices, std::greater_equal{}) == indices.end();
  if (!ascend || (!indices.empty() && indices.back() >= run.size())) {
    coder_->give_up("the device's indices are out of order or out of range");
    return false;
  }
  cutoff = left;
  return true;
}

bool DeviceVector::multiply(std::span<const float> matrix, const MatrixSizes& sizes,
                            std::span<const float> right, std::span<float> left) {
  if (matrix.size() < device_elements_min || !coder_->ask([&](CodecDevice& device) {
        return device.multiply(there(matrix).data(), sizes, right.data(), left.data());
      }))
    return false;
  const MatrixSizes of_row = {.rows = 1, .cols = sizes.cols, .rank = sizes.rank};
  std::vector<float> wanted(sizes.rank);
  for (const std::size_t row : {std::size_t{0}, sizes.rows - 1}) {
    fl::multiply(matrix.data() + row * sizes.cols, of_row, right.data(), wanted.data());
    if (!has_products(left, row, wanted)) return false;
  }
  return true;
}

bool DeviceVector::multiply_transposed(std::span<const float> matrix, const MatrixSizes& sizes,
                                       std::span<const float> left, std::span<float> right) {
  if (matrix.size() < device_elements_min || !coder_->ask([&](CodecDevice& device) {
        return device.multiply_transposed(there(matrix).data(), sizes, left.data(), right.data());
      }))
    return false;
  const MatrixSizes of_column = {.rows = sizes.rows, .cols = 1, .rank = sizes.rank};
  std::vector<float> column(sizes.rows);
  std::vector<float> wanted(sizes.rank);
  for (const std::size_t col : {std::size_t{0}, sizes.cols - 1}) {
    for (std::size_t row = 0; row < sizes.rows; ++row) column[row] = matrix[row * sizes.cols + col];
    fl::multiply_transposed(column.data(), of_column, left.data(), wanted.data());
    if (!has_products(right, col, wanted)) return false;
  }
  return true;
}

bool DeviceVector::has_products(std::span<const float> there, std::size_t place,
                                std::span<const float> wanted) {
  const std::size_t size = there.size() / wanted.size();
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    const float seen = there[k * size + place];
    // Two NaNs count as equal, whatever their bits.
    if (std::bit_cast<std::uint32_t>(seen) == std::bit_cast<std::uint32_t>(wanted[k]) ||
        (std::isnan(seen) && std::isnan(wanted[k])))
      continue;
    coder_->give_up("the device's products differ from the CPU's");
    return false;
  }
  return true;
}

const float* DeviceCoder::copy(std::span<const float> vector) {
  if (!device_) return nullptr;
  const float* there = nullptr;
  const int error = device_->copy(vector, there);
  if (error == 0) return there;
  log_warn("this update is coded on the CPU, copying it to the device failed: {}",
           device_->error_text(error));
  return nullptr;
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
  Slot& slot = slots_[number];
  slot.blocks = {};
  if (!device_ || blocks.empty()) return;
  FL_ASSERT(blocks.size() <= batch_blocks());
  slot.runs.clear();
  for (const BlockOnDevice& block : blocks) {
    const LevelBlock& run = block.block;
    FL_ASSERT(run.elements <= device_block_max);
    if (run.rounding == LevelRounding::stochastic || run.rounding == LevelRounding::fitted) {
      FL_ASSERT(run.levels <= device_levels_max && bucket_count(run) <= device_buckets_max);
    } else if (run.rounding == LevelRounding::rotated) {
      FL_ASSERT(run.elements == device_block_max && run.split <= run.elements);
      FL_ASSERT(run.sent == run.split || run.sent == run.elements);
    } else if (run.rounding != LevelRounding::sign) {
      FL_ASSERT(run.most <= run.step * (device_levels_max - 0.5f));
    }
    slot.runs.push_back(run);
  }
  if (is_good(device_->start(number, vector, slot.runs))) slot.blocks = blocks;
}

void DeviceCoder::finish(std::size_t number, Lanes& lanes) {
  Slot& slot = slots_[number];
  if (!device_ || slot.blocks.empty()) return;
  const auto blocks = std::exchange(slot.blocks, {});
  std::span<const LevelTally> tallies;
  if (!is_good(device_->tallies(number, tallies))) return;
  slot.codes.assign(blocks.size(), LevelCode{});
  constexpr std::size_t blocks_of_run = 4;
  lanes.for_each_run(
      blocks.size(), blocks_of_run, [&](std::size_t, std::size_t begin, std::size_t end) {
        for (std::size_t b = begin; b < end; ++b) {
          BlockOnDevice& block = blocks[b];
          slot.codes[b] = block.coder->level_code(block.block, tallies[b], *block.head);
        }
      });
  if (!is_good(device_->code(number, slot.codes))) return;
  slot.streams.resize(blocks.size());
  std::span<const std::uint32_t> bytes;
  if (!is_good(device_->streams(number, slot.streams, bytes))) return;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    if (slot.codes[b].top == 0 || bytes[b] > slot.codes[b].bytes_max) continue;
    blocks[b].stream = std::as_bytes(slot.streams[b]);
    blocks[b].is_coded = true;
    ++results_;
  }
}

}  // namespace fl::codec
