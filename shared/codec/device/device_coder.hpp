// What a device does (kernels/codec_device.hpp) while a vector is encoded. Whatever it can't do, or
// fails at, is done by the CPU with the same bytes: so nothing here is an error. Of what it does a
// part is done by the CPU, too; a device that differs is given up.
#pragma once

#include "kernels/codec_device.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/device/device_levels.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace fl {

static_assert(part_elements_max <= device_block_max);

/// A block that a device may code.
struct BlockOnDevice {
  const LevelCoder* coder;  // Of the method that codes it.
  LevelBlock block;
  std::vector<std::byte>* out;  // Replaced by the block's bytes when the device has coded it,
  bool is_coded = false;        // as is said here.
};

/// One thread at a time.
class DeviceCoder {
 public:
  explicit DeviceCoder(std::unique_ptr<CodecDevice> device) : device_(std::move(device)) {}

  [[nodiscard]] bool is_there() const { return device_ != nullptr; }
  /// From now on it is not there, and the log says why.
  void give_up(std::string_view why);
  /// Calls use(device), which returns the device's error. False: it is not there, or no more.
  template <class Use>
  [[nodiscard]] bool ask(const Use& use) {
    if (!device_ || !is_good(use(*device_))) return false;
    ++results_;
    return true;
  }
  /// Where a copy of the vector lies on the device, until the next one is made; null where it has
  /// no room for it, as the log says.
  [[nodiscard]] const float* copy(std::span<const float> vector);

  /// At most CodecDevice::batch_blocks_max blocks of the vector, which lies on the device; both
  /// must stay where they are until this slot's finish(), or until end(). Does not wait.
  void start(std::size_t slot, const float* vector, std::span<BlockOnDevice> blocks);
  /// Waits; the blocks that are not coded then are the caller's to code.
  void finish(std::size_t slot);
  /// Waits for what is still under way.
  void end();
  /// How many blocks the device has coded and questions it has answered, of all vectors.
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

/// Who may do a part of coding a vector besides the CPU, and where a copy of the vector lies there.
/// No coder: the CPU does all. No values: the coder copies the vector there, if that is of use.
struct DeviceCopy {
  DeviceCoder* coder = nullptr;
  const float* values = nullptr;
};

/// A vector here and its copy on a device, which does with it what codec_device.hpp says. Parts of
/// the vector are told by where they lie here. One thread at a time.
class DeviceVector {
 public:
  DeviceVector(DeviceCoder& coder, const float* there, std::span<const float> here)
      : coder_(&coder), there_(there), here_(here) {}

  [[nodiscard]] DeviceCoder& coder() const { return *coder_; }
  [[nodiscard]] const float* there() const { return there_; }

  // Nothing, or false: it must be done here. What was to be written is not, or not whole.

  /// Of device_elements_min values at least, and fewer than 2^32. The first one of the vector is
  /// checked here.
  [[nodiscard]] std::optional<Cutoff> find_largest(std::span<const std::span<const float>> runs,
                                                   std::uint64_t k);
  /// Of at most device_select_max values. Replaces `indices`, which ascend and are below their
  /// number.
  [[nodiscard]] bool select_largest(std::span<const float> run, Cutoff& cutoff,
                                    std::vector<std::uint32_t>& indices);
  /// Of device_elements_min values at least. Some results of each are checked here.
  [[nodiscard]] bool multiply(std::span<const float> matrix, const MatrixSizes& sizes,
                              std::span<const float> right, std::span<float> left);
  [[nodiscard]] bool multiply_transposed(std::span<const float> matrix, const MatrixSizes& sizes,
                                         std::span<const float> left, std::span<float> right);

  /// The first estimate of each is checked here.
  [[nodiscard]] bool estimate(std::span<const SketchBlock> sketches, std::span<const float> cells,
                              std::span<float> estimates);

 private:
  /// The same part on the device.
  [[nodiscard]] std::span<const float> there(std::span<const float> here) const;
  /// Whether these are at this place of the device's factor's columns. False: it is given up.
  [[nodiscard]] bool has_products(std::span<const float> there, std::size_t place,
                                  std::span<const float> wanted);

  DeviceCoder* coder_;
  const float* there_;
  std::span<const float> here_;
  bool is_cutoff_checked_ = false;
};

}  // namespace fl
