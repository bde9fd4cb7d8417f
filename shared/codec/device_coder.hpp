// Blocks that a device codes (kernels/level_device.hpp) while their vector is encoded. Whatever a
// device can't do, or fails at, is done by the CPU with the same bytes: so nothing here is an
// error, and one who asks for a device gets a payload in any case.
#pragma once

#include "kernels/level_device.hpp"
#include "shared/codec/block_map.hpp"
#include "shared/codec/method.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace fl {

static_assert(part_elements_max <= device_block_max);

/// Whether a device may code a block of so many: fewer have no tables (adaptive_codes.hpp), and
/// more are coded as a whole.
[[nodiscard]] constexpr bool is_for_device(std::size_t elements) {
  return elements > adaptive_levels_max && elements <= part_elements_max;
}

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
  explicit DeviceCoder(std::unique_ptr<LevelDevice> device) : device_(std::move(device)) {}

  [[nodiscard]] bool is_there() const { return device_ != nullptr; }
  /// From now on it is not there, and the log says why.
  void give_up(std::string_view why);

  /// At most LevelDevice::batch_blocks_max blocks of the vector, which lies on the device; both
  /// must stay where they are until this slot's finish(), or until end(). Does not wait.
  void start(std::size_t slot, const float* vector, std::span<BlockOnDevice> blocks);
  /// Waits; the blocks that are not coded then are the caller's to code.
  void finish(std::size_t slot);
  /// Waits for what is still under way.
  void end();
  /// How many blocks the device has coded, of all vectors.
  [[nodiscard]] std::uint64_t blocks_coded() const { return blocks_coded_; }

 private:
  struct Slot {
    std::span<BlockOnDevice> blocks;
    std::vector<LevelBlock> runs;
    std::vector<LevelCode> codes;
    std::vector<std::span<const std::uint8_t>> streams;
  };
  [[nodiscard]] bool is_good(int error);

  std::unique_ptr<LevelDevice> device_;
  std::array<Slot, LevelDevice::slots> slots_;
  std::uint64_t blocks_coded_ = 0;
};

/// Who may code a vector besides the CPU, and where a copy of the vector lies there. Either may be
/// null: then the CPU codes all.
struct DeviceCopy {
  DeviceCoder* coder = nullptr;
  const float* values = nullptr;
};

}  // namespace fl
