// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_codec_device.hpp"

#include "kernels/cuda/bodies/level_body.hpp"
#include "kernels/cuda/cuda_matrix.hpp"
#include "kernels/cuda/cuda_rotate.hpp"
#include "kernels/cuda/cuda_select.hpp"
#include "kernels/cuda/launch/device_block.cuh"

#include <type_traits>

namespace fl::cuda {

namespace {

// The most bytes of all streams of a batch that are fetched. LevelCode::bytes_max is below a byte
// for each level.
constexpr std::size_t fetched_max = CodecDevice::batch_blocks_max * device_block_max;
constexpr std::size_t stream_words = rans_bytes_max(device_block_max) / sizeof(std::uint16_t);

/// The rotations of all blocks of a slot.
struct Rotations {
  float* values = nullptr;
  SignFlip* flips = nullptr;  // The first one of each block, then the second ones.
  double* sums = nullptr;

  __device__ Rotation at(std::size_t block) const {
    return {.values = values + block * device_block_max,
            .first = flips + block,
            .second = flips + CodecDevice::batch_blocks_max + block,
            .sum_squares = sums + block};
  }
};

__global__ void begin_rotations_kernel(const float* vector, const LevelBlock* runs,
                                       Rotations rotations) {
  __shared__ ScanMemory shared;
  begin_rotation(WideBlock{}, vector, runs[blockIdx.x], rotations.at(blockIdx.x), shared);
}

__global__ void tally_kernel(const float* vector, const LevelBlock* runs, Rotations rotations,
                             std::uint8_t* levels, std::uint8_t* classes, LevelTally* tallies) {
  __shared__ TallyMemory shared;
  const std::size_t at = blockIdx.x * device_block_max;
  tally_levels(WideBlock{}, vector, runs[blockIdx.x], rotations.at(blockIdx.x), levels + at,
               classes + at, tallies + blockIdx.x, shared);
}

__global__ void code_kernel(const LevelBlock* runs, const LevelCode* wanted,
                            const std::uint8_t* levels, const std::uint8_t* classes,
                            std::uint16_t* streams, std::uint32_t* bytes) {
  __shared__ rans::Code codes[rans_symbols_max];
  const std::size_t at = blockIdx.x * device_block_max;
  code_levels(WarpBlock{}, runs[blockIdx.x], wanted[blockIdx.x], levels + at, classes + at,
              streams + (blockIdx.x + 1) * stream_words, bytes + blockIdx.x, codes);
}

struct DeviceMemory {
  static cudaError_t allocate(void** memory, std::size_t bytes) {
    return cudaMalloc(memory, bytes);
  }
  void operator()(void* memory) const { cudaFree(memory); }
};
struct PageLockedMemory {  // Host memory.
  static cudaError_t allocate(void** memory, std::size_t bytes) {
    return cudaMallocHost(memory, bytes);
  }
  void operator()(void* memory) const { cudaFreeHost(memory); }
};

template <class T>
using OnDevice = std::unique_ptr<T, DeviceMemory>;
template <class T>
using PageLocked = std::unique_ptr<T, PageLockedMemory>;

/// Allocates n values.
template <class T, class Memory>
cudaError_t allocate(std::unique_ptr<T, Memory>& out, std::size_t n) {
  void* memory = nullptr;
  const cudaError_t error = Memory::allocate(&memory, n * sizeof(T));
  out.reset(static_cast<T*>(memory));
  return error;
}

/// Makes several calls. After the first error it makes no more, and keeps that error.
class Calls {
 public:
  template <class Call>
  Calls& then(const Call& call) {
    if (error_ == cudaSuccess) error_ = call();
    return *this;
  }
  [[nodiscard]] int error() const { return error_; }

 private:
  int error_ = cudaSuccess;
};

struct DestroyStream {
  void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, DestroyStream>;

/// Makes a stream that does not wait for the default stream.
cudaError_t make_stream(Stream& out) {
  cudaStream_t raw = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking);
  out.reset(raw);
  return error;
}

/// Device memory for values that come from the host or go there. It grows as needed.
struct Values {
  OnDevice<float> memory;
  std::size_t room = 0;

  int reserve(std::size_t n) {
    if (n <= room) return cudaSuccess;
    memory.reset();  // First, so that old and new never exist together.
    room = 0;
    const cudaError_t error = allocate(memory, n);
    if (error == cudaSuccess) room = n;
    return error;
  }
  int copy_from(const float* host, std::size_t n, CUstream_st* stream) {
    return Calls()
        .then([&] { return reserve(n); })
        .then([&] {
          return cudaMemcpyAsync(memory.get(), host, n * sizeof(float), cudaMemcpyHostToDevice,
                                 stream);
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

struct Slot {
  OnDevice<LevelBlock> runs;
  OnDevice<LevelTally> tallies;
  OnDevice<LevelCode> codes;
  OnDevice<std::uint8_t> levels;
  OnDevice<std::uint8_t> classes;
  OnDevice<std::uint16_t> streams;
  OnDevice<std::uint32_t> bytes;
  PageLocked<LevelBlock> host_runs;
  PageLocked<LevelTally> host_tallies;
  PageLocked<LevelCode> host_codes;
  PageLocked<std::uint32_t> host_bytes;
  PageLocked<std::uint8_t> host_streams;
  OnDevice<float> rotated;
  OnDevice<SignFlip> flips;
  OnDevice<double> sums;
  Stream stream;
  std::size_t blocks = 0;

  int make() {
    constexpr std::size_t n = CodecDevice::batch_blocks_max;
    constexpr std::size_t values = n * device_block_max;
    return Calls()
        .then([&] { return make_stream(stream); })
        .then([&] { return allocate(runs, n); })
        .then([&] { return allocate(tallies, n); })
        .then([&] { return allocate(codes, n); })
        .then([&] { return allocate(levels, values); })
        .then([&] { return allocate(classes, values); })
        .then([&] { return allocate(streams, n * stream_words); })
        .then([&] { return allocate(bytes, n); })
        .then([&] { return allocate(rotated, values); })
        .then([&] { return allocate(flips, 2 * n); })
        .then([&] { return allocate(sums, n); })
        .then([&] { return allocate(host_runs, n); })
        .then([&] { return allocate(host_tallies, n); })
        .then([&] { return allocate(host_codes, n); })
        .then([&] { return allocate(host_bytes, n); })
        .then([&] { return allocate(host_streams, fetched_max); })
        .error();
  }

  [[nodiscard]] Rotations rotations() const {
    return {.values = rotated.get(), .flips = flips.get(), .sums = sums.get()};
  }

  template <class T>
  int copy_to_device(T* to, const T* from) {
    return cudaMemcpyAsync(to, from, blocks * sizeof(T), cudaMemcpyHostToDevice, stream.get());
  }
  template <class T>
  int copy_to_host(T* to, const T* from) {
    return cudaMemcpyAsync(to, from, blocks * sizeof(T), cudaMemcpyDeviceToHost, stream.get());
  }
  int wait() { return cudaStreamSynchronize(stream.get()); }
};

class CudaCodecDevice final : public CodecDevice {
 public:
  int make() {
    return Calls()
        .then([&] { return cudaGetDevice(&device_); })
        .then([&] { return slots_[0].make(); })
        .then([&] { return slots_[1].make(); })
        .then([&] { return whole_.make(); })
        .error();
  }

  ~CudaCodecDevice() override {
    for (Slot& slot : slots_) {
      if (slot.stream) static_cast<void>(slot.wait());
    }
    if (whole_.stream) static_cast<void>(whole_.wait());
  }

  int start(std::size_t number, const float* vector, std::span<const LevelBlock> blocks) override {
    Slot& slot = slots_[number];
    slot.blocks = blocks.size();
    std::copy(blocks.begin(), blocks.end(), slot.host_runs.get());
    return Calls()
        .then([&] { return cudaSetDevice(device_); })
        .then([&] { return slot.copy_to_device(slot.runs.get(), slot.host_runs.get()); })
        .then([&] {
          const bool is_any = std::ranges::any_of(blocks, [](const LevelBlock& block) {
            return block.rounding == LevelRounding::rotated;
          });
          return is_any ? rotate(slot, vector) : cudaSuccess;
        })
        .then([&] {
          return start_blocks(tally_kernel, slot, WideBlock::threads, vector, slot.runs.get(),
                              slot.rotations(), slot.levels.get(), slot.classes.get(),
                              slot.tallies.get());
        })
        .then([&] { return slot.copy_to_host(slot.host_tallies.get(), slot.tallies.get()); })
        .error();
  }

  int tallies(std::size_t number, std::span<const LevelTally>& out) override {
    out = {slots_[number].host_tallies.get(), slots_[number].blocks};
    return slots_[number].wait();
  }

  int code(std::size_t number, std::span<const LevelCode> codes) override {
    Slot& slot = slots_[number];
    std::copy(codes.begin(), codes.end(), slot.host_codes.get());
    return Calls()
        .then([&] { return cudaSetDevice(device_); })
        .then([&] { return slot.copy_to_device(slot.codes.get(), slot.host_codes.get()); })
        .then([&] {
          return start_blocks(code_kernel, slot, WarpBlock::threads, slot.runs.get(),
                              slot.codes.get(), slot.levels.get(), slot.classes.get(),
                              slot.streams.get(), slot.bytes.get());
        })
        .then([&] { return slot.copy_to_host(slot.host_bytes.get(), slot.bytes.get()); })
        .error();
  }

  int streams(std::size_t number, std::span<std::span<const std::uint8_t>> out,
              std::span<const std::uint32_t>& bytes) override {
    Slot& slot = slots_[number];
    Calls calls;
    calls.then([&] { return slot.wait(); });
    bytes = {slot.host_bytes.get(), slot.blocks};
    std::size_t at = 0;
    for (std::size_t b = 0; b < slot.blocks && calls.error() == cudaSuccess; ++b) {
      out[b] = {};
      const std::size_t size = bytes[b];
      if (size == 0 || size > slot.host_codes.get()[b].bytes_max) continue;
      const auto* const end =
          reinterpret_cast<const std::uint8_t*>(slot.streams.get() + (b + 1) * stream_words);
      std::uint8_t* const to = slot.host_streams.get() + at;
      calls.then([&] {
        return cudaMemcpyAsync(to, end - size, size, cudaMemcpyDeviceToHost, slot.stream.get());
      });
      out[b] = {to, size};
      at += size;
    }
    return calls.then([&] { return slot.wait(); }).error();
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
    there = whole_.vector.memory.get();
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
                              slot.runs.get(), slot.rotations());
        })
        .then([&] { return hadamard_with(slot.flips.get()); })
        .then([&] { return hadamard_with(slot.flips.get() + batch_blocks_max); })
        .error();
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
          return product(there, sizes, factor_there.memory.get(), result_there.memory.get(),
                         whole_.stream.get());
        })
        .then([&] { return whole_.copy_to_host(result, result_there.memory.get(), result_size); })
        .then([&] { return whole_.wait(); })
        .error();
  }

  int device_ = 0;
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
