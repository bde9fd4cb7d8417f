// SPDX-License-Identifier: Apache-2.0
// Lets a device (kernels/codec_device.hpp) do a part of encoding a vector. What the device can't do
// or fails to do, the CPU does, with the same bytes; so no function here returns an error. The CPU
// checks a part of the device's results. A device whose results differ is not used again.
#pragma once

#include "kernels/codec_device.hpp"
#include "shared/base/async/parallel.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/device/device_levels.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace fl::codec {

static_assert(part_elements_max <= device_block_max);

/// A block that a device may code.
struct BlockOnDevice {
  const LevelCoder* coder;  // The level coder of the block's compressor.
  LevelBlock block;
  std::vector<std::byte>* head;  // Replaced by the bytes before the stream if the device codes it.
  std::span<const std::byte> stream = {};  // The bytes after these, until the slot's next start().
  bool is_coded = false;                   // Whether the device has coded it.
};

/// A device, or none. One thread at a time.
class DeviceCoder {
 public:
  explicit DeviceCoder(std::unique_ptr<CodecDevice> device) : device_(std::move(device)) {}

  [[nodiscard]] bool is_there() const { return device_ != nullptr; }
  /// Stops using the device for good and logs why.
  void give_up(std::string_view why);
  /// Calls use(device), which returns the device's error. False: there is no device, or it failed
  /// and is given up.
  template <class Use>
  [[nodiscard]] bool ask(const Use& use) {
    if (!device_ || !is_good(use(*device_))) return false;
    ++results_;
    return true;
  }
  /// Copies the vector to the device and returns its address there, valid until the next copy().
  /// Null: there is no device, or the copy failed, and the log says why.
  [[nodiscard]] const float* copy(std::span<const float> vector);

  /// How many blocks may be coded at once. Requires: is_there().
  [[nodiscard]] std::size_t batch_blocks() const { return device_->batch_blocks(); }
  /// Starts to code at most batch_blocks() blocks of the vector, which lies on the device. `vector`
  /// and `blocks` must stay where they are until this slot's finish(), or end(). Does not wait.
  void start(std::size_t slot, const float* vector, std::span<BlockOnDevice> blocks);
  /// Waits for the slot's blocks; `lanes` make their tables. The caller must code the blocks that
  /// are not is_coded then.
  void finish(std::size_t slot, Lanes& lanes);
  /// Waits for work that is still running and drops its results.
  void end();
  /// How many blocks the device coded plus how many calls of ask() succeeded, for all vectors.
  [[nodiscard]] std::uint64_t results() const { return results_; }

 private:
  struct Slot {
    std::span<BlockOnDevice> blocks;
    std::vector<LevelBlock> runs;
    std::vector<LevelCode> codes;
    std::vector<std::span<const std::uint8_t>> streams;
  };
  [[nodiscard]] bool is_good(int error);

  std::unique_ptr<CodecDevice> device_;
  std::array<Slot, CodecDevice::slots> slots_;
  std::uint64_t results_ = 0;
};

/// The device that may do a part of encoding a vector, and where a copy of the vector lies there.
/// A null coder: the CPU does everything. Null values: the vector is copied there if that pays.
struct DeviceCopy {
  DeviceCoder* coder = nullptr;
  const float* values = nullptr;
};

/// A vector here, in the host's memory, and its copy "there", on a device. The functions call those
/// of CodecDevice. Arguments that are parts of the vector are spans of the copy here. One thread at
/// a time.
class DeviceVector {
 public:
  DeviceVector(DeviceCoder& coder, const float* there, std::span<const float> here)
      : coder_(&coder), there_(there), here_(here) {}

  [[nodiscard]] DeviceCoder& coder() const { return *coder_; }
  [[nodiscard]] const float* there() const { return there_; }

  // If a function returns nullopt or false, the CPU must do the work. The outputs then have no
  // meaning, except that select_largest() has not changed the cutoff.

  /// The cutoff of the k largest values of all runs. nullopt also if there are fewer than
  /// device_elements_min values, or 2^32 or more. The CPU checks the vector's first cutoff.
  [[nodiscard]] std::optional<Cutoff> find_largest(std::span<const std::span<const float>> runs,
                                                   std::uint64_t k);
  /// The values that `cutoff` selects from a run of at most device_select_max values; counts down
  /// the cutoff's ties. Replaces `indices`, which ascend strictly and are below run.size().
  [[nodiscard]] bool select_largest(std::span<const float> run, Cutoff& cutoff,
                                    std::vector<std::uint32_t>& indices);
  /// multiply() and multiply_transposed() (kernels/generic/matrix.hpp). False also if the matrix
  /// has fewer than device_elements_min values. The CPU checks some products of each call.
  [[nodiscard]] bool multiply(std::span<const float> matrix, const MatrixSizes& sizes,
                              std::span<const float> right, std::span<float> left);
  [[nodiscard]] bool multiply_transposed(std::span<const float> matrix, const MatrixSizes& sizes,
                                         std::span<const float> left, std::span<float> right);

 private:
  /// The part of the vector on the device that corresponds to `here`.
  [[nodiscard]] std::span<const float> there(std::span<const float> here) const;
  /// Whether the device's products at index `place` of each column equal `wanted`. False: the
  /// device is given up.
  [[nodiscard]] bool has_products(std::span<const float> there, std::size_t place,
                                  std::span<const float> wanted);

  DeviceCoder* coder_;
  const float* there_;
  std::span<const float> here_;
  bool is_cutoff_checked_ = false;
};

}  // namespace fl::codec
