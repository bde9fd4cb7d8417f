// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_codec_device.hpp"

#include "kernels/cuda/bodies/gather_body.hpp"
#include "kernels/cuda/bodies/level_body.hpp"
#include "kernels/cuda/cuda_matrix.hpp"
#include "kernels/cuda/cuda_rotate.hpp"
#include "kernels/cuda/cuda_select.hpp"
#include "kernels/cuda/launch/device_block.cuh"
#include "kernels/cuda/launch/device_memory.cuh"

#include <algorithm>

namespace fl::cuda {

namespace {

constexpr std::size_t batch_min = 64;
constexpr std::size_t batch_max = 1024;  // 67 million values.
/// The part of the free memory that both slots may take.
constexpr std::size_t memory_share = 8;

/// The rotations of all blocks of a slot.
struct Rotations {
  float* values = nullptr;
  SignFlip* first = nullptr;
  SignFlip* second = nullptr;
  double* sums = nullptr;

  __device__ Rotation at(std::size_t block) const {
    return {.values = values + block * device_block_max,
            .first = first + block,
            .second = second + block,
            .sum_squares = sums + block};
  }
};

__global__ void begin_rotations_kernel(const float* vector, const LevelBlock* runs,
                                       Rotations rotations) {
  __shared__ ScanMemory shared;
  begin_rotation(WideBlock{}, vector, runs[blockIdx.x], rotations.at(blockIdx.x), shared);
}

/// Rounds the blocks that have this rounding. A kernel for all of them would need the registers of
/// the one that needs most.
template <LevelRounding rounding>
__global__ void tally_kernel(const float* vector, const LevelBlock* runs, Rotations rotations,
                             std::uint8_t* levels, std::uint8_t* classes, LevelTally* tallies) {
  __shared__ TallyMemory shared;
  if (runs[blockIdx.x].rounding != rounding) return;
  const std::size_t at = blockIdx.x * device_block_max;
  tally_levels<rounding>(WideBlock{}, vector, runs[blockIdx.x], rotations.at(blockIdx.x),
                         levels + at, classes + at, tallies + blockIdx.x, shared);
}

__global__ void code_kernel(const LevelBlock* runs, const LevelCode* wanted,
                            const std::uint8_t* levels, const std::uint8_t* classes,
                            std::uint8_t* streams, std::uint32_t* bytes) {
  __shared__ EncodeMemory shared;
  const std::size_t at = blockIdx.x * device_block_max;
  auto* const end = reinterpret_cast<std::uint16_t*>(streams + (blockIdx.x + 1) * stream_slot);
  code_levels(WarpBlock{}, runs[blockIdx.x], wanted[blockIdx.x], levels + at, classes + at, end,
              bytes + blockIdx.x, shared);
}

__global__ void place_kernel(const LevelCode* wanted, const std::uint32_t* bytes, std::size_t n,
                             std::uint32_t* ends) {
  __shared__ std::uint32_t sums[WideBlock::threads];
  place_streams(WideBlock{}, wanted, bytes, n, ends, sums);
}

__global__ void gather_kernel(const LevelCode* wanted, const std::uint32_t* bytes,
                              const std::uint32_t* ends, const std::uint8_t* streams,
                              std::uint8_t* gathered) {
  const std::size_t b = blockIdx.x;
  gather_stream(WideBlock{}, wanted[b], bytes[b], ends[b], streams + (b + 1) * stream_slot,
                gathered);
}

/// Device memory for values that come from the host or go there.
struct Values : DeviceRoom<float> {
  int copy_from(const float* host, std::size_t n, CUstream_st* stream) {
    return Calls()
        .then([&] { return reserve(n); })
        .then([&] {
          return cudaMemcpyAsync(get(), host, n * sizeof(float), cudaMemcpyHostToDevice, stream);
        })
        .error();
  }
};

/// The stream and the memory for work on whole vectors.
struct Whole {
  Stream stream;
  Values vector;
  Values left;
  Values right;
  OnDevice<Cutoff> cutoff;
  OnDevice<std::uint32_t> counts;
  OnDevice<std::uint64_t> sums;
  OnDevice<std::uint32_t> selected;
  OnDevice<std::uint32_t> indices;

  int make() {
    return Calls()
        .then([&] { return make_stream(stream); })
        .then([&] { return allocate(cutoff, 1); })
        .then([&] { return allocate(counts, digit_counts); })
        .then([&] { return allocate(sums, tile_sums(device_select_max)); })
        .then([&] { return allocate(selected, 1); })
        .then([&] { return allocate(indices, device_select_max); })
        .error();
  }
  template <class T>
  int copy_to_host(T* to, const T* from, std::size_t n) {
    return cudaMemcpyAsync(to, from, n * sizeof(T), cudaMemcpyDeviceToHost, stream.get());
  }
  int wait() { return cudaStreamSynchronize(stream.get()); }
};

/// Room for the same values on the device and in page-locked memory of the host.
template <class T>
struct BothRooms {
  DeviceRoom<T> there;
  HostRoom<T> here;

  int reserve(std::size_t n) {
    return Calls()
        .then([&] { return there.reserve(n); })
        .then([&] { return here.reserve(n); })
        .error();
  }
  int copy_there(std::size_t n, CUstream_st* stream) {
    return cudaMemcpyAsync(there.get(), here.get(), n * sizeof(T), cudaMemcpyHostToDevice, stream);
  }
  int copy_here(std::size_t n, CUstream_st* stream) {
    if (n == 0) return cudaSuccess;  // There may be no memory.
    return cudaMemcpyAsync(here.get(), there.get(), n * sizeof(T), cudaMemcpyDeviceToHost, stream);
  }
};

struct Slot {
  BothRooms<LevelBlock> runs;
  BothRooms<LevelTally> tallies;
  BothRooms<LevelCode> codes;
  BothRooms<std::uint32_t> bytes;
  BothRooms<std::uint32_t> ends;
  BothRooms<std::uint8_t> gathered;
  DeviceRoom<std::uint8_t> levels;
  DeviceRoom<std::uint8_t> classes;
  DeviceRoom<std::uint8_t> streams;
  DeviceRoom<float> rotated;
  DeviceRoom<SignFlip> flips;  // The first one of each block, then the second ones.
  DeviceRoom<double> sums;
  Stream stream;
  std::size_t blocks = 0;

  /// The most that a block takes on the device.
  static constexpr std::size_t bytes_of_block = (2 + sizeof(float)) * device_block_max +
                                                2 * stream_slot + sizeof(LevelTally) +
                                                sizeof(LevelCode) + sizeof(LevelBlock);

  /// Makes room for a batch. The slot has nothing to do, unless results of it were dropped.
  int reserve(std::span<const LevelBlock> batch) {
    const std::size_t n = batch.size();
    const bool has_classes =
        std::ranges::any_of(batch, [](const LevelBlock& block) { return block.class_bits > 0; });
    const std::size_t rotations = is_rotated(batch) ? n : 0;
    return Calls()
        .then([&] { return wait(); })
        .then([&] { return runs.reserve(n); })
        .then([&] { return tallies.reserve(n); })
        .then([&] { return codes.reserve(n); })
        .then([&] { return bytes.reserve(n); })
        .then([&] { return ends.reserve(n); })
        .then([&] { return levels.reserve(n * device_block_max); })
        .then([&] { return classes.reserve(has_classes ? n * device_block_max : 0); })
        .then([&] { return streams.reserve(n * stream_slot); })
        .then([&] { return rotated.reserve(rotations * device_block_max); })
        .then([&] { return flips.reserve(2 * rotations); })
        .then([&] { return sums.reserve(rotations); })
        .error();
  }

  static bool is_rotated(std::span<const LevelBlock> batch) {
    return std::ranges::any_of(
        batch, [](const LevelBlock& block) { return block.rounding == LevelRounding::rotated; });
  }

  [[nodiscard]] Rotations rotations() const {
    return {.values = rotated.get(),
            .first = flips.get(),
            .second = flips.get() + blocks,
            .sums = sums.get()};
  }

  /// Starts to copy an element for each block.
  template <class T>
  int copy_there(BothRooms<T>& values) {
    return values.copy_there(blocks, stream.get());
  }
  template <class T>
  int copy_here(BothRooms<T>& values) {
    return values.copy_here(blocks, stream.get());
  }
  int wait() { return cudaStreamSynchronize(stream.get()); }
};

class CudaCodecDevice final : public CodecDevice {
 public:
  int make() {
    std::size_t free = 0;
    std::size_t total = 0;
    const int error = Calls()
                          .then([&] { return cudaGetDevice(&device_); })
                          .then([&] { return cudaMemGetInfo(&free, &total); })
                          .then([&] { return make_stream(slots_[0].stream); })
                          .then([&] { return make_stream(slots_[1].stream); })
                          .then([&] { return whole_.make(); })
                          .error();
    const std::size_t affordable = free / memory_share / (slots * Slot::bytes_of_block);
    batch_blocks_ = std::clamp(affordable, batch_min, batch_max);
    return error;
  }

  ~CudaCodecDevice() override {
    for (Slot& slot : slots_) {
      if (slot.stream) static_cast<void>(slot.wait());
    }
    if (whole_.stream) static_cast<void>(whole_.wait());
  }

  std::size_t batch_blocks() const override { return batch_blocks_; }

  int start(std::size_t number, const float* vector, std::span<const LevelBlock> blocks) override {
    Slot& slot = slots_[number];
    return Calls()
        .then([&] { return cudaSetDevice(device_); })
        .then([&] { return slot.reserve(blocks); })
        .then([&] {
          slot.blocks = blocks.size();
          std::copy(blocks.begin(), blocks.end(), slot.runs.here.get());
          return slot.copy_there(slot.runs);
        })
        .then([&] { return Slot::is_rotated(blocks) ? rotate(slot, vector) : cudaSuccess; })
        .then([&] { return tally(slot, vector, blocks); })
        .then([&] { return slot.copy_here(slot.tallies); })
        .error();
  }

  int tallies(std::size_t number, std::span<const LevelTally>& out) override {
    out = {slots_[number].tallies.here.get(), slots_[number].blocks};
    return slots_[number].wait();
  }

  int code(std::size_t number, std::span<const LevelCode> codes) override {
    Slot& slot = slots_[number];
    std::size_t most = 0;  // Bytes of the streams that may be wanted.
    for (const LevelCode& code : codes) most += code.top == 0 ? 0 : gathered_size(code.bytes_max);
    std::copy(codes.begin(), codes.end(), slot.codes.here.get());
    return Calls()
        .then([&] { return cudaSetDevice(device_); })
        .then([&] { return slot.gathered.there.reserve(most); })
        .then([&] { return slot.copy_there(slot.codes); })
        .then([&] {
          return start_blocks(code_kernel, slot, WarpBlock::threads, slot.runs.there.get(),
                              slot.codes.there.get(), slot.levels.get(), slot.classes.get(),
                              slot.streams.get(), slot.bytes.there.get());
        })
        .then([&] {
          return cuda::start(place_kernel, 1, WideBlock::threads, 0, slot.stream.get(),
                             slot.codes.there.get(), slot.bytes.there.get(), slot.blocks,
                             slot.ends.there.get());
        })
        .then([&] {
          return start_blocks(gather_kernel, slot, WideBlock::threads, slot.codes.there.get(),
                              slot.bytes.there.get(), slot.ends.there.get(), slot.streams.get(),
                              slot.gathered.there.get());
        })
        .then([&] { return slot.copy_here(slot.bytes); })
        .then([&] { return slot.copy_here(slot.ends); })
        .error();
  }

  int streams(std::size_t number, std::span<std::span<const std::uint8_t>> out,
              std::span<const std::uint32_t>& bytes) override {
    Slot& slot = slots_[number];
    bytes = {slot.bytes.here.get(), slot.blocks};
    const std::span ends(slot.ends.here.get(), slot.blocks);
    const auto all = [&] { return ends.empty() ? 0 : ends.back(); };  // Once they are here.
    const int error = Calls()
                          .then([&] { return slot.wait(); })
                          .then([&] { return slot.gathered.here.reserve(all()); })
                          .then([&] { return slot.gathered.copy_here(all(), slot.stream.get()); })
                          .then([&] { return slot.wait(); })
                          .error();
    for (std::size_t b = 0; b < slot.blocks && error == cudaSuccess; ++b) {
      out[b] = {};
      if (!is_wanted(slot.codes.here.get()[b], bytes[b])) continue;
      out[b] = {slot.gathered.here.get() + ends[b] - bytes[b], bytes[b]};
    }
    return error;
  }

  int copy(std::span<const float> vector, const float*& there) override {
    const int error =
        Calls()
            .then([&] { return cudaSetDevice(device_); })
            .then([&] {
              return whole_.vector.copy_from(vector.data(), vector.size(), whole_.stream.get());
            })
            .then([&] { return whole_.wait(); })
            .error();
    there = whole_.vector.get();
    return error;
  }

  int find_largest(std::span<const std::span<const float>> there, std::uint64_t k,
                   Cutoff& out) override {
    return Calls()
        .then([&] { return cudaSetDevice(device_); })
        .then([&] {
          return cuda::find_largest(there, k, whole_.cutoff.get(), whole_.counts.get(),
                                    whole_.stream.get());
        })
        .then([&] { return whole_.copy_to_host(&out, whole_.cutoff.get(), 1); })
        .then([&] { return whole_.wait(); })
        .error();
  }

  int select_largest(std::span<const float> there, Cutoff& cutoff,
                     std::vector<std::uint32_t>& indices) override {
    std::uint32_t selected = 0;
    Calls calls;
    calls.then([&] { return cudaSetDevice(device_); })
        .then([&] {
          return cudaMemcpyAsync(whole_.cutoff.get(), &cutoff, sizeof cutoff,
                                 cudaMemcpyHostToDevice, whole_.stream.get());
        })
        .then([&] {
          return cuda::select_largest(there.data(), there.size(), whole_.cutoff.get(),
                                      whole_.indices.get(), whole_.selected.get(),
                                      whole_.sums.get(), whole_.stream.get());
        })
        .then([&] { return whole_.copy_to_host(&selected, whole_.selected.get(), 1); })
        .then([&] { return whole_.copy_to_host(&cutoff, whole_.cutoff.get(), 1); })
        .then([&] { return whole_.wait(); });
    calls.then([&] { return selected <= there.size() ? cudaSuccess : cudaErrorUnknown; });
    indices.resize(calls.error() == cudaSuccess ? selected : 0);
    return calls
        .then([&] { return whole_.copy_to_host(indices.data(), whole_.indices.get(), selected); })
        .then([&] { return whole_.wait(); })
        .error();
  }

  int multiply(const float* there, const MatrixSizes& sizes, const float* right,
               float* left) override {
    return multiply_by(cuda::multiply, there, sizes, right, sizes.rank * sizes.cols, whole_.right,
                       left, sizes.rank * sizes.rows, whole_.left);
  }

  int multiply_transposed(const float* there, const MatrixSizes& sizes, const float* left,
                          float* right) override {
    return multiply_by(cuda::multiply_transposed, there, sizes, left, sizes.rank * sizes.rows,
                       whole_.left, right, sizes.rank * sizes.cols, whole_.right);
  }

  const char* error_text(int error) const override {
    return cudaGetErrorString(static_cast<cudaError_t>(error));
  }

 private:
  /// Rotates all blocks of the slot. For a block that is not to be rotated this transforms stale
  /// values, which nothing reads.
  static int rotate(Slot& slot, const float* vector) {
    const auto hadamard_with = [&](const SignFlip* flips) {
      return hadamard(slot.rotated.get(), rotated_log2, slot.blocks, flips, slot.stream.get());
    };
    return Calls()
        .then([&] {
          return start_blocks(begin_rotations_kernel, slot, WideBlock::threads, vector,
                              slot.runs.there.get(), slot.rotations());
        })
        .then([&] { return hadamard_with(slot.rotations().first); })
        .then([&] { return hadamard_with(slot.rotations().second); })
        .error();
  }

  /// Starts a kernel for each rounding that the blocks have.
  static int tally(Slot& slot, const float* vector, std::span<const LevelBlock> blocks) {
    unsigned roundings = 0;  // A bit for each.
    for (const LevelBlock& block : blocks) roundings |= 1u << static_cast<unsigned>(block.rounding);
    Calls calls;
    for (unsigned r = 0; roundings >> r != 0; ++r) {
      if ((roundings >> r & 1) == 0) continue;
      calls.then([&] {
        return with_rounding(static_cast<LevelRounding>(r), [&](auto rounding) {
          return start_blocks(tally_kernel<rounding.value>, slot, WideBlock::threads, vector,
                              slot.runs.there.get(), slot.rotations(), slot.levels.get(),
                              slot.classes.get(), slot.tallies.there.get());
        });
      });
    }
    return calls.error();
  }

  template <class... Parameters, class... Arguments>
  static int start_blocks(void (*kernel)(Parameters...), const Slot& slot, unsigned threads,
                          const Arguments&... arguments) {
    return cuda::start(kernel, static_cast<unsigned>(slot.blocks), threads, 0, slot.stream.get(),
                       arguments...);
  }

  template <class Product>
  int multiply_by(const Product& product, const float* there, const MatrixSizes& sizes,
                  const float* factor, std::size_t factor_size, Values& factor_there, float* result,
                  std::size_t result_size, Values& result_there) {
    return Calls()
        .then([&] { return cudaSetDevice(device_); })
        .then([&] { return result_there.reserve(result_size); })
        .then([&] { return factor_there.copy_from(factor, factor_size, whole_.stream.get()); })
        .then([&] {
          return product(there, sizes, factor_there.get(), result_there.get(), whole_.stream.get());
        })
        .then([&] { return whole_.copy_to_host(result, result_there.get(), result_size); })
        .then([&] { return whole_.wait(); })
        .error();
  }

  int device_ = 0;
  std::size_t batch_blocks_ = batch_min;
  Slot slots_[slots];
  Whole whole_;
};

}  // namespace

std::unique_ptr<CodecDevice> make_codec_device(const char*& error) {
  auto device = std::make_unique<CudaCodecDevice>();
  const int failed = device->make();
  if (failed == cudaSuccess) return device;
  error = device->error_text(failed);
  static_cast<void>(cudaGetLastError());  // Clears the error, or the next start would return it.
  return nullptr;
}

}  // namespace fl::cuda
