// SPDX-License-Identifier: Apache-2.0
// A CodecDevice (kernels/codec_device.hpp) that runs the bodies of the CUDA kernels on a CPU, with
// the launches of CUDA and with memory of the exact size. Tests can make it fail, or make mistakes.
#pragma once

#include "kernels/cuda/bodies/gather_body.hpp"
#include "kernels/cuda/bodies/level_body.hpp"
#include "tests/kernels/host_launches.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace fl::twins {

class HostCodecDevice final : public CodecDevice {
 public:
  static constexpr int failure = 1;

  int calls_left = -1;                      // Calls until all others fail. Negative: none fails.
  std::size_t* results = nullptr;           // Counts streams and selections, if not null.
  std::size_t* copies = nullptr;            // Counts copies, if not null.
  std::size_t right_streams = SIZE_MAX;     // After so many it flips a bit of each stream.
  std::size_t right_selections = SIZE_MAX;  // After so many each selection lacks one element.
  const Cutoff* wrong_cutoff = nullptr;     // The result of find_largest(), if not null.
  std::optional<float> wrong_product = {};  // If set, multiply() writes it everywhere.
  std::size_t blocks_of_batch = 64;         // The result of batch_blocks().

  std::size_t batch_blocks() const override { return blocks_of_batch; }

  int start(std::size_t number, const float* vector, std::span<const LevelBlock> blocks) override {
    Slot& slot = slots_[number];
    slot = {};
    slot.vector = vector;
    slot.runs.assign(blocks.begin(), blocks.end());
    return next();
  }

  /// The rounding happens here and not in start(), which is as late as a device may do it.
  int tallies(std::size_t number, std::span<const LevelTally>& out) override {
    Slot& slot = slots_[number];
    const std::size_t count = slot.runs.size();
    slot.tallies = shared_memory<LevelTally>(count);
    slot.levels.resize(count);
    slot.classes.resize(count);
    launch<256>(static_cast<unsigned>(count), [&](const auto& block) {
      auto shared = shared_memory<cuda::TallyMemory>(1);
      const std::size_t b = block.index;
      const LevelBlock& run = slot.runs[b];
      slot.levels[b].resize(run.elements);
      slot.classes[b].resize(run.class_bits > 0 ? run.elements : 0);
      Rotated rotated;
      if (run.rounding == LevelRounding::rotated) rotated = rotate(slot.vector, run);
      cuda::with_rounding(run.rounding, [&](auto rounding) {
        cuda::tally_levels<rounding.value>(block, slot.vector, run, rotated.all(),
                                           slot.levels[b].data(), slot.classes[b].data(),
                                           &slot.tallies[b], shared.front());
      });
    });
    out = slot.tallies;
    return next();
  }

  int code(std::size_t number, std::span<const LevelCode> codes) override {
    slots_[number].codes.assign(codes.begin(), codes.end());
    return next();
  }

  int streams(std::size_t number, std::span<std::span<const std::uint8_t>> out,
              std::span<const std::uint32_t>& bytes) override {
    Slot& slot = slots_[number];
    const std::size_t count = slot.codes.size();
    slot.bytes.assign(count, 77);
    slot.streams.resize(count);
    launch<32>(static_cast<unsigned>(count), [&](const auto& warp) {
      auto shared = shared_memory<cuda::EncodeMemory>(1);
      const std::size_t b = warp.index;
      auto& stream = slot.streams[b];
      stream.resize(cuda::stream_slot / 2);
      cuda::code_levels(warp, slot.runs[b], slot.codes[b], slot.levels[b].data(),
                        slot.classes[b].data(), stream.data() + stream.size(), &slot.bytes[b],
                        shared.front());
    });
    bytes = slot.bytes;
    gather(slot);
    for (std::size_t b = 0; b < count; ++b) {
      out[b] = {};
      const std::size_t size = slot.bytes[b];
      if (!cuda::is_wanted(slot.codes[b], slot.bytes[b])) continue;
      std::uint8_t* const end = slot.gathered.data() + slot.ends[b];
      if (right_streams == 0) end[-1] ^= 1;
      if (right_streams > 0) --right_streams;
      if (results != nullptr) ++*results;
      out[b] = {end - size, size};
    }
    return next();
  }

  int copy(std::span<const float> vector, const float*& there) override {
    copied_.assign(vector.begin(), vector.end());
    there = copied_.data();
    if (copies != nullptr) ++*copies;
    return next();
  }

  int find_largest(std::span<const std::span<const float>> there, std::uint64_t k,
                   Cutoff& out) override {
    out = find_largest_by_blocks<256>(there, k, 2);
    if (wrong_cutoff != nullptr) out = *wrong_cutoff;
    return next();
  }

  int select_largest(std::span<const float> there, Cutoff& cutoff,
                     std::vector<std::uint32_t>& indices) override {
    indices = select_by_blocks<256>(there, cutoff, 2);
    if (right_selections == 0 && !indices.empty()) indices.erase(indices.begin());
    if (right_selections > 0) --right_selections;
    if (results != nullptr) ++*results;
    return next();
  }

  int multiply(const float* there, const MatrixSizes& of, const float* right,
               float* left) override {
    multiply_by_blocks(there, of, right, left, 3);
    if (wrong_product) std::fill_n(left, of.rank * of.rows, *wrong_product);
    return next();
  }

  int multiply_transposed(const float* there, const MatrixSizes& of, const float* left,
                          float* right) override {
    multiply_transposed_by_blocks(there, of, left, right, 3);
    return next();
  }

  const char* error_text(int) const override { return "the device is lost"; }

 private:
  /// A rotated block.
  struct Rotated {
    std::vector<float> values;
    cuda::SignFlip first{};
    cuda::SignFlip second{};
    double sum_squares = 0;
    cuda::Rotation all() { return {values.data(), &first, &second, &sum_squares}; }
  };
  static Rotated rotate(const float* vector, const LevelBlock& run) {
    Rotated out;
    out.values.resize(run.elements);
    launch<256>(1, [&](const auto& block) {
      auto shared = shared_memory<cuda::ScanMemory>(1);
      cuda::begin_rotation(block, vector, run, out.all(), shared.front());
    });
    hadamard_by_blocks(out.values.data(), cuda::rotated_log2, 1, &out.first, 3);
    hadamard_by_blocks(out.values.data(), cuda::rotated_log2, 1, &out.second, 3);
    return out;
  }

  struct Slot;
  /// Brings the wanted streams together in slot.gathered.
  static void gather(Slot& slot) {
    const std::size_t count = slot.codes.size();
    slot.ends.assign(count, 77);
    launch_one<256>(count % 2 == 1, [&](const auto& block) {
      auto shared = shared_memory<std::uint32_t>(256);
      cuda::place_streams(block, slot.codes.data(), slot.bytes.data(), count, slot.ends.data(),
                          shared.data());
    });
    slot.gathered = shared_memory<std::uint8_t>(count == 0 ? 0 : slot.ends.back());
    launch<256>(static_cast<unsigned>(count), [&](const auto& block) {
      const std::size_t b = block.index;
      const auto& stream = slot.streams[b];
      cuda::gather_stream(block, slot.codes[b], slot.bytes[b], slot.ends[b],
                          reinterpret_cast<const std::uint8_t*>(stream.data() + stream.size()),
                          slot.gathered.data());
    });
  }

  struct Slot {
    const float* vector = nullptr;
    std::vector<LevelBlock> runs;
    std::vector<LevelTally> tallies;
    std::vector<LevelCode> codes;
    std::vector<std::vector<std::uint8_t>> levels;
    std::vector<std::vector<std::uint8_t>> classes;
    std::vector<std::vector<std::uint16_t>> streams;
    std::vector<std::uint32_t> bytes;
    std::vector<std::uint32_t> ends;
    std::vector<std::uint8_t> gathered;
  };

  int next() {
    if (calls_left < 0) return 0;
    if (calls_left == 0) return failure;
    --calls_left;
    return 0;
  }

  Slot slots_[slots];
  std::vector<float> copied_;
};

}  // namespace fl::twins
