// SPDX-License-Identifier: Apache-2.0
// Compares the CUDA twins with the scalar row, bit for bit. They run on their own CUDA stream, with
// pointers that are not aligned for whole vectors. Without a device the tests print that they are
// skipped, and pass.
#include "kernels/cuda/cuda_kernels.hpp"
#include "kernels/cuda/cuda_codec_device.hpp"
#include "kernels/cuda/cuda_matrix.hpp"
#include "kernels/cuda/cuda_pack.hpp"
#include "kernels/cuda/cuda_quantize.hpp"
#include "kernels/cuda/cuda_rans.hpp"
#include "kernels/cuda/cuda_rotate.hpp"
#include "kernels/cuda/cuda_select.hpp"
#include "kernels/generic/pack.hpp"
#include "tests/kernels/host_codec_device.hpp"

#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace {

using namespace fl;

bool has_device() {
  if (cuda::device_count() > 0) return true;
  std::fprintf(stderr, "\n*** skipped: no device. The CUDA kernels were NOT tested. ***\n\n");
  return false;
}

void check(int error) { REQUIRE(error == cudaSuccess); }

struct FreeDevice {
  void operator()(void* memory) const { cudaFree(memory); }
};

template <class T>
struct DeviceArray {
  explicit DeviceArray(std::size_t n) : size(n) {
    void* raw = nullptr;
    check(cudaMalloc(&raw, (n + 1) * sizeof(T)));
    memory.reset(raw);
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    check(cudaMemcpy(data(), values.data(), size * sizeof(T), cudaMemcpyHostToDevice));
    // The copy may return before it has reached the device, and the tests' streams do not wait for
    // it.
    check(cudaDeviceSynchronize());
  }
  T* data() { return static_cast<T*>(memory.get()) + 1; }  // Misaligned for vectors on purpose.
  std::vector<T> host() {
    std::vector<T> out(size);
    check(cudaMemcpy(out.data(), data(), size * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }
  std::unique_ptr<void, FreeDevice> memory;
  std::size_t size;
};

struct Stream {
  Stream() { check(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(raw); }
  void wait() { check(cudaStreamSynchronize(raw)); }
  cudaStream_t raw = nullptr;
};

constexpr std::size_t sizes[] = {1, 33, 1025, 65537, 4'000'037, 40'000'003};

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

}  // namespace

TEST_CASE("the device gives the same bits as the scalar row") {
  if (!has_device()) return;
  const Kernels& plain = *all_kernels().front();
  Stream stream;
  for (const std::size_t n : {1u, 31u, 33u, 1025u, 65537u, 4'000'037u}) {
    CAPTURE(n);
    std::vector<float> x(n);
    plain.gaussian(1, 2, 5, x.data(), n);
    DeviceArray<float> values(n);
    check(cuda::gaussian(1, 2, 5, values.data(), n, stream.raw));
    stream.wait();
    CHECK(same_bits(values.host(), x));

    std::vector<std::uint16_t> halves(n);
    plain.to_half(x.data(), n, halves.data());
    DeviceArray<std::uint16_t> device_halves(n);
    check(cuda::to_half(values.data(), n, device_halves.data(), stream.raw));
    stream.wait();
    CHECK(same_bits(device_halves.host(), halves));
    std::vector<float> back(n);
    plain.from_half(halves.data(), n, back.data());
    DeviceArray<float> device_back(n);
    check(cuda::from_half(device_halves.data(), n, device_back.data(), stream.raw));
    stream.wait();
    CHECK(same_bits(device_back.host(), back));

    for (const std::int32_t top : {1, 127, 32767}) {
      const QuantizeArgs args = {.scale = plain.scan(x.data(), n).max_abs,
                                 .levels = top,
                                 .seed = 3,
                                 .stream = 4,
                                 .first = 9};
      std::vector<std::int16_t> levels(n);
      plain.quantize(x.data(), n, args, levels.data());
      DeviceArray<std::int16_t> device_levels(n);
      check(cuda::quantize(values.data(), n, args, device_levels.data(), stream.raw));
      stream.wait();
      CHECK(same_bits(device_levels.host(), levels));
      plain.dequantize(levels.data(), n, 0.1f, back.data());
      check(cuda::dequantize(device_levels.data(), n, 0.1f, device_back.data(), stream.raw));
      stream.wait();
      CHECK(same_bits(device_back.host(), back));
    }
  }
}

TEST_CASE("fused quantizing on the device equals the rows' add, round, dequantize and subtract") {
  if (!has_device()) return;
  const Kernels& row = kernels();
  Stream stream;
  for (const std::size_t n : sizes) {
    CAPTURE(n);
    std::vector<float> x(n);
    std::vector<float> residual(n);
    row.gaussian(1, 1, 0, x.data(), n);
    row.gaussian(1, 2, 0, residual.data(), n);
    DeviceArray<float> device_x(x);
    DeviceArray<float> device_residual(residual);
    DeviceArray<std::int16_t> device_levels(n);
    std::vector<std::uint32_t> counts(255);
    DeviceArray<std::uint32_t> device_counts(counts);
    check(cuda::quantize_with_feedback(device_x.data(), device_residual.data(), n, 3.0f / 127, 127,
                                       device_levels.data(), device_counts.data(), stream.raw));
    stream.wait();
    for (std::size_t i = 0; i < n; ++i) x[i] += residual[i];
    std::vector<std::int16_t> levels(n);
    row.round(x.data(), n, 3.0f / 127, levels.data());
    for (std::int16_t& level : levels) level = std::clamp<std::int16_t>(level, -127, 127);
    row.dequantize(levels.data(), n, 3.0f / 127, residual.data());
    for (std::size_t i = 0; i < n; ++i) {
      residual[i] = x[i] - residual[i];
      ++counts[static_cast<std::size_t>(levels[i] + 127)];
    }
    CHECK(same_bits(device_levels.host(), levels));
    CHECK(same_bits(device_residual.host(), residual));
    CHECK(same_bits(device_counts.host(), counts));
  }
}

TEST_CASE("dither, round and the narrow formats on the device equal the rows") {
  if (!has_device()) return;
  const Kernels& row = kernels();
  Stream stream;
  for (const std::size_t n : sizes) {
    CAPTURE(n);
    std::vector<float> x(n);
    row.gaussian(1, 1, 0, x.data(), n);
    DeviceArray<float> device_x(x);
    DeviceArray<std::int16_t> device_levels(n);
    DeviceArray<std::uint8_t> device_classes(n);
    DeviceArray<std::uint32_t> device_largest(std::vector<std::uint32_t>{0});
    DeviceArray<float> device_back(n);
    const DitherArgs args = {.step = 0.1f, .key = 7, .first = 5, .class_bits = 3};
    check(cuda::dither(device_x.data(), n, args, device_levels.data(), device_classes.data(),
                       device_largest.data(), stream.raw));
    check(cuda::undither(device_levels.data(), n, args, device_back.data(), stream.raw));
    stream.wait();
    std::vector<std::int16_t> levels(n);
    std::vector<std::uint8_t> classes(n);
    std::vector<float> back(n);
    const std::int32_t largest = row.dither(x.data(), n, args, levels.data(), classes.data());
    row.undither(levels.data(), n, args, back.data());
    CHECK(same_bits(device_levels.host(), levels));
    CHECK(same_bits(device_classes.host(), classes));
    CHECK(same_bits(device_back.host(), back));
    CHECK(device_largest.host()[0] == static_cast<std::uint32_t>(largest));
    DeviceArray<std::uint8_t> classes_alone(n);
    check(cuda::dither_classes(n, args, classes_alone.data(), stream.raw));

    DeviceArray<std::uint32_t> largest_rounded(std::vector<std::uint32_t>{0});
    check(cuda::round(device_x.data(), n, 0.1f, device_levels.data(), largest_rounded.data(),
                      stream.raw));
    DeviceArray<std::uint16_t> device_codes(n);
    check(cuda::to_bf16(device_x.data(), n, device_codes.data(), stream.raw));
    check(cuda::from_bf16(device_codes.data(), n, device_back.data(), stream.raw));
    stream.wait();
    CHECK(same_bits(classes_alone.host(), classes));
    const std::int32_t most = row.round(x.data(), n, 0.1f, levels.data());
    CHECK(same_bits(device_levels.host(), levels));
    CHECK(largest_rounded.host()[0] == static_cast<std::uint32_t>(most));
    std::vector<std::uint16_t> codes(n);
    row.to_bf16(x.data(), n, codes.data());
    row.from_bf16(codes.data(), n, back.data());
    CHECK(same_bits(device_codes.host(), codes));
    CHECK(same_bits(device_back.host(), back));
  }
}

TEST_CASE("scan, pack_signs and unpack_signs on the device equal the rows") {
  if (!has_device()) return;
  const Kernels& row = kernels();
  Stream stream;
  constexpr std::size_t run = 65536;
  for (const std::size_t n : sizes) {
    CAPTURE(n);
    std::vector<float> x(n);
    row.gaussian(1, 1, 0, x.data(), n);
    const std::size_t runs = (n + run - 1) / run;
    DeviceArray<float> device_x(x);
    DeviceArray<Scan> device_scans(runs);
    DeviceArray<std::uint8_t> device_bits((n + 7) / 8);
    DeviceArray<double> device_sums(runs);
    DeviceArray<float> device_back(n);
    check(cuda::scan(device_x.data(), n, run, device_scans.data(), stream.raw));
    check(cuda::pack_signs(device_x.data(), n, run, device_bits.data(), device_sums.data(),
                           stream.raw));
    check(cuda::unpack_signs(device_bits.data(), n, 0.3f, device_back.data(), stream.raw));
    stream.wait();
    const std::vector<Scan> scans = device_scans.host();
    std::vector<std::uint8_t> bits((n + 7) / 8);
    std::vector<double> sums(runs);
    for (std::size_t r = 0; r < runs; ++r) {
      const std::size_t count = std::min(run, n - r * run);
      const Scan wanted = row.scan(x.data() + r * run, count);
      CHECK(scans[r].first_bad == wanted.first_bad);
      CHECK(scans[r].max_abs == wanted.max_abs);
      CHECK(std::memcmp(&scans[r].sum_squares, &wanted.sum_squares, sizeof(double)) == 0);
      sums[r] = row.pack_signs(x.data() + r * run, count, bits.data() + r * run / 8);
    }
    CHECK(same_bits(device_bits.host(), bits));
    CHECK(same_bits(device_sums.host(), sums));
    std::vector<float> back(n);
    row.unpack_signs(bits.data(), n, 0.3f, back.data());
    CHECK(same_bits(device_back.host(), back));
    x[n / 2] = -HUGE_VALF;
    DeviceArray<float> bad_x(x);
    check(cuda::scan(bad_x.data(), n, run, device_scans.data(), stream.raw));
    stream.wait();
    const Scan bad = device_scans.host()[n / 2 / run];
    CHECK(bad.first_bad == n / 2 % run);
    CHECK(bad.sum_squares == 0);
  }
}

TEST_CASE("bit fields packed and unpacked on the device equal the host's") {
  if (!has_device()) return;
  const Kernels& row = kernels();
  Stream stream;
  for (const std::size_t n : sizes) {
    for (const std::int32_t top : {1, 12, 127, 1000, 32767}) {
      CAPTURE(n);
      CAPTURE(top);
      std::vector<float> x(n);
      row.gaussian(1, 1, 0, x.data(), n);
      std::vector<std::int16_t> levels(n);
      const QuantizeArgs args = {.scale = 2, .levels = top, .seed = 3, .stream = 4, .first = 0};
      row.quantize(x.data(), n, args, levels.data());
      std::vector<std::uint8_t> packed(packed_bytes(n, top));
      pack_levels(levels.data(), n, top, packed.data());
      DeviceArray<std::int16_t> device_levels(levels);
      DeviceArray<std::uint8_t> device_packed(packed.size());
      DeviceArray<std::int16_t> device_back(n);
      DeviceArray<std::uint32_t> is_bad(std::vector<std::uint32_t>{0});
      check(cuda::pack_levels(device_levels.data(), n, top, device_packed.data(), stream.raw));
      check(cuda::unpack_levels(device_packed.data(), n, top, device_back.data(), is_bad.data(),
                                stream.raw));
      stream.wait();
      CHECK(same_bits(device_packed.host(), packed));
      CHECK(same_bits(device_back.host(), levels));
      CHECK(is_bad.host()[0] == 0);
      packed.back() = 0xff;
      DeviceArray<std::uint8_t> damaged(packed);
      check(cuda::unpack_levels(damaged.data(), n, top, device_back.data(), is_bad.data(),
                                stream.raw));
      stream.wait();
      CHECK(is_bad.host()[0] == (unpack_levels(packed.data(), n, top, levels.data()) ? 0 : 1));
    }
    const std::vector<std::int16_t> codes(n, -3);
    std::vector<std::uint8_t> packed(packed_code_bytes(n, 3));
    pack_codes(codes.data(), n, 3, packed.data());
    DeviceArray<std::int16_t> device_codes(codes);
    DeviceArray<std::uint8_t> device_packed(packed.size());
    DeviceArray<std::int16_t> device_back(n);
    DeviceArray<std::uint32_t> is_bad(std::vector<std::uint32_t>{0});
    check(cuda::pack_codes(device_codes.data(), n, 3, device_packed.data(), stream.raw));
    check(cuda::unpack_codes(device_packed.data(), n, 3, device_back.data(), is_bad.data(),
                             stream.raw));
    stream.wait();
    CHECK(same_bits(device_packed.host(), packed));
    CHECK(same_bits(device_back.host(), codes));
    CHECK(is_bad.host()[0] == 0);
  }
}

TEST_CASE("rANS streams of the device equal the rows', and it decodes them") {
  if (!has_device()) return;
  const Kernels& row = kernels();
  Stream stream;
  constexpr std::size_t block = 65536;
  for (const std::size_t n : sizes) {
    CAPTURE(n);
    std::vector<float> x(n);
    row.gaussian(1, 1, 0, x.data(), n);
    std::vector<std::uint8_t> symbols(n);
    for (std::size_t i = 0; i < n; ++i) {
      symbols[i] = static_cast<std::uint8_t>(std::clamp(std::round(x[i] * 5) + 20, 0.0f, 40.0f));
    }
    std::vector<RansFrequencies> frequencies;
    std::vector<std::uint8_t> streams;
    std::vector<std::uint64_t> ends = {0};
    for (std::size_t begin = 0; begin < n; begin += block) {
      const std::size_t count = std::min(block, n - begin);
      std::vector<std::uint32_t> counts(rans_symbols_max);
      row.count_symbols(symbols.data() + begin, count, counts.data());
      frequencies.push_back(rans_frequencies(counts));
      std::vector<std::uint8_t> buffer(rans_bytes_max(count));
      const std::size_t bytes = rans_encode(symbols.data() + begin, count, frequencies.back(),
                                            buffer.data() + buffer.size());
      streams.insert(streams.end(), buffer.end() - static_cast<std::ptrdiff_t>(bytes),
                     buffer.end());
      ends.push_back(streams.size());
    }

    DeviceArray<std::uint8_t> device_symbols(symbols);
    DeviceArray<RansFrequencies> device_frequencies(frequencies);
    const cuda::SymbolBlocks blocks = {
        .n = n, .block = block, .frequencies = device_frequencies.data()};
    const std::size_t slot = rans_bytes_max(block);
    DeviceArray<std::uint16_t> slots(frequencies.size() * slot / 2);
    DeviceArray<std::uint32_t> device_bytes(frequencies.size());
    check(cuda::rans_encode(device_symbols.data(), blocks,
                            reinterpret_cast<std::uint8_t*>(slots.data()), device_bytes.data(),
                            stream.raw));
    stream.wait();
    const std::vector<std::uint16_t> words = slots.host();
    const auto* const bytes_seen = reinterpret_cast<const std::uint8_t*>(words.data());
    const std::vector<std::uint32_t> lengths = device_bytes.host();
    for (std::size_t b = 0; b < frequencies.size(); ++b) {
      REQUIRE(lengths[b] == ends[b + 1] - ends[b]);
      CHECK(std::memcmp(bytes_seen + (b + 1) * slot - lengths[b], streams.data() + ends[b],
                        lengths[b]) == 0);
    }

    DeviceArray<std::uint8_t> device_streams(streams);
    DeviceArray<std::uint64_t> device_ends(ends);
    DeviceArray<std::uint8_t> back(n);
    DeviceArray<std::uint32_t> is_good(frequencies.size());
    check(cuda::rans_decode(device_streams.data(), device_ends.data(), blocks, nullptr, 1,
                            back.data(), is_good.data(), stream.raw));
    stream.wait();
    CHECK(same_bits(back.host(), symbols));
    CHECK(is_good.host() == std::vector<std::uint32_t>(frequencies.size(), 1));
    if (n == 1) continue;  // A stream of one symbol has no bytes.
    // With shared memory for eight classes, and without the last byte of the last stream.
    const std::vector<std::uint8_t> classes(n);
    DeviceArray<std::uint8_t> device_classes(classes);
    --ends.back();
    DeviceArray<std::uint64_t> short_ends(ends);
    check(cuda::rans_decode(device_streams.data(), short_ends.data(), blocks, device_classes.data(),
                            8, back.data(), is_good.data(), stream.raw));
    stream.wait();
    std::vector<std::uint32_t> verdicts(frequencies.size(), 1);
    verdicts.back() = 0;
    CHECK(is_good.host() == verdicts);
  }
}

TEST_CASE("the device selects the same elements as the host") {
  if (!has_device()) return;
  Stream stream;
  for (const std::size_t n : sizes) {
    std::vector<float> normal(n);
    kernels().gaussian(1, 1, 0, normal.data(), n);
    std::vector<float> tied = normal;
    for (float& v : tied) v = std::round(v * 4);
    for (const auto& x : {normal, tied}) {
      CAPTURE(n);
      const auto k = static_cast<std::uint32_t>(n / 100 + 1);
      const std::span<const float> all(x);
      Cutoff cutoff = find_largest(std::span(&all, 1), k);
      DeviceArray<float> device_x(x);
      DeviceArray<Cutoff> device_cutoff(1);
      DeviceArray<std::uint32_t> counts(cuda::digit_counts);
      const std::span<const float> there(device_x.data(), n);
      const std::array runs = {there.first(n / 3), there.subspan(n / 3)};
      check(cuda::find_largest(runs, k, device_cutoff.data(), counts.data(), stream.raw));
      stream.wait();
      CHECK(device_cutoff.host()[0] == cutoff);
      std::vector<std::uint32_t> indices(n);
      indices.resize(select_largest(all, cutoff, indices.data()));
      DeviceArray<std::uint32_t> device_indices(k);
      DeviceArray<std::uint32_t> selected(1);
      DeviceArray<std::uint64_t> sums(cuda::tile_sums(n));
      check(cuda::select_largest(device_x.data(), n, device_cutoff.data(), device_indices.data(),
                                 selected.data(), sums.data(), stream.raw));
      stream.wait();
      CHECK(selected.host()[0] == k);
      CHECK(same_bits(device_indices.host(), indices));
      CHECK(device_cutoff.host()[0] == cutoff);
    }
  }
}

TEST_CASE("products of matrices on the device equal the host's") {
  if (!has_device()) return;
  Stream stream;
  for (const MatrixSizes sizes : {MatrixSizes{1, 1, 1}, MatrixSizes{3, 33, 2},
                                  MatrixSizes{257, 1025, 4}, MatrixSizes{1000, 5000, 16}}) {
    CAPTURE(sizes.cols);
    std::vector<float> matrix(sizes.rows * sizes.cols);
    std::vector<float> right(sizes.rank * sizes.cols);
    kernels().gaussian(1, 1, 0, matrix.data(), matrix.size());
    kernels().gaussian(1, 2, 0, right.data(), right.size());
    std::vector<float> left(sizes.rank * sizes.rows);
    multiply(matrix.data(), sizes, right.data(), left.data());
    DeviceArray<float> device_matrix(matrix);
    DeviceArray<float> device_right(right);
    DeviceArray<float> device_left(left.size());
    check(cuda::multiply(device_matrix.data(), sizes, device_right.data(), device_left.data(),
                         stream.raw));
    stream.wait();
    CHECK(same_bits(device_left.host(), left));
    multiply_transposed(matrix.data(), sizes, left.data(), right.data());
    check(cuda::multiply_transposed(device_matrix.data(), sizes, device_left.data(),
                                    device_right.data(), stream.raw));
    stream.wait();
    CHECK(same_bits(device_right.host(), right));
  }
}

TEST_CASE("rotation on the device equals the rows'") {
  if (!has_device()) return;
  const Kernels& row = kernels();
  Stream stream;
  struct Runs {
    int log2_n;
    std::size_t count;
  };
  for (const Runs& c :
       {Runs{0, 3}, Runs{5, 7}, Runs{13, 3}, Runs{14, 3}, Runs{16, 611}, Runs{21, 2}}) {
    const int log2_n = c.log2_n;
    const std::size_t runs = c.count;
    CAPTURE(log2_n);
    const std::size_t n = std::size_t{1} << log2_n;
    std::vector<float> x(n * runs);
    row.gaussian(1, 1, 0, x.data(), x.size());
    std::vector<cuda::SignFlip> flips;
    for (std::size_t r = 0; r < runs; ++r)
      flips.push_back({.factor = 0.5f, .seed = 9, .stream = r});
    DeviceArray<float> device_x(x);
    DeviceArray<cuda::SignFlip> device_flips(flips);
    check(cuda::hadamard(device_x.data(), log2_n, runs, device_flips.data(), stream.raw));
    check(cuda::flip_signs(device_x.data(), n, runs, device_flips.data(), stream.raw));
    check(cuda::hadamard(device_x.data(), log2_n, runs, nullptr, stream.raw));
    stream.wait();
    for (std::size_t r = 0; r < runs; ++r) {
      float* const run = x.data() + r * n;
      row.flip_signs(run, n, 0.5f, 9, r);
      row.hadamard(run, log2_n);
      row.flip_signs(run, n, 0.5f, 9, r);
      row.hadamard(run, log2_n);
    }
    CHECK(same_bits(device_x.host(), x));
  }
}

namespace {

struct LevelsOfSlot {
  std::vector<LevelTally> tallies;
  std::vector<std::vector<std::uint8_t>> streams;
};

/// A code with two classes, if the block has classes and there is room for their symbols.
LevelCode code_of(const LevelBlock& block, const LevelTally& tally) {
  LevelCode code{};
  if (tally.is_levelled == 0) return code;
  if (block.rounding == LevelRounding::sign) {
    code.top = 1;
    code.packed = block.elements;
    code.bytes_max = device_block_max;
    return code;
  }
  const bool has_two = block.class_bits > 0 && block.step > 0.1f;
  code.top = has_two ? 60 : device_levels_max;
  code.class_drop = has_two ? block.class_bits - 1 : block.class_bits;
  code.bytes_max = device_block_max;
  const auto top = static_cast<std::size_t>(code.top);
  for (std::size_t into = 0; into < (has_two ? 2u : 1u); ++into) {
    // With two classes no frequency may be 2^12.
    std::vector<std::uint32_t> counts(2 * top + 1, has_two ? 1 : 0);
    for (std::size_t c = 0; c < rans_classes_max; ++c) {
      if (c >> code.class_drop != into) continue;
      for (std::size_t l = 0; l < counts.size(); ++l)
        counts[l] += tally.counts[c * device_alphabet + device_levels_max - top + l];
    }
    const RansFrequencies frequencies = rans_frequencies(counts);
    std::copy_n(frequencies.begin(), counts.size(), code.frequencies + into * counts.size());
  }
  return code;
}

/// Uses both slots at the same time, as an encoder does.
std::vector<LevelsOfSlot> levels_by(CodecDevice& device, const float* vector,
                                    const std::vector<LevelBlock> (&blocks)[2]) {
  std::vector<LevelsOfSlot> out(2);
  for (std::size_t slot : {0u, 1u}) check(device.start(slot, vector, blocks[slot]));
  for (std::size_t slot : {0u, 1u}) {
    std::span<const LevelTally> tallies;
    check(device.tallies(slot, tallies));
    out[slot].tallies.assign(tallies.begin(), tallies.end());
    std::vector<LevelCode> codes;
    for (std::size_t b = 0; b < tallies.size(); ++b)
      codes.push_back(code_of(blocks[slot][b], tallies[b]));
    check(device.code(slot, codes));
    std::vector<std::span<const std::uint8_t>> streams(codes.size());
    std::span<const std::uint32_t> bytes;
    check(device.streams(slot, streams, bytes));
    for (const auto& stream : streams) out[slot].streams.emplace_back(stream.begin(), stream.end());
  }
  return out;
}

}  // namespace

TEST_CASE("a CUDA codec device gives the same as its bodies on a CPU") {
  if (!has_device()) return;
  constexpr std::size_t n = 3'000'000;
  std::vector<float> x(n);
  kernels().gaussian(1, 2, 0, x.data(), n);
  x[100'000] = 1000;  // The block with this value is not rounded.
  std::vector<LevelBlock> blocks[2];
  std::size_t begin = 0;
  LevelBlock ways[8];
  ways[0] = {.rounding = LevelRounding::nearest, .most = 12, .step = 0.1f};
  for (const int w : {1, 2, 3}) {
    ways[w] = {.rounding = LevelRounding::dither, .most = 12, .step = w > 2 ? 0.2f : 0.1f};
    ways[w].class_bits = w == 3 ? 3 : w - 1;
  }
  ways[4] = {
      .rounding = LevelRounding::stochastic, .most = 12, .levels = 127, .bucket = 300, .stream = 3};
  ways[5] = {.rounding = LevelRounding::fitted, .most = 12, .levels = 7, .bucket = 300};
  ways[6] = {.rounding = LevelRounding::fitted, .most = 12, .levels = 127, .bucket = 65'536};
  ways[7] = {.rounding = LevelRounding::sign, .most = 12};
  for (const std::uint32_t elements : {1u, 31u, 300u, 16'383u, 16'384u, 20'001u, 65'535u}) {
    for (LevelBlock block : ways) {
      block.begin = begin;
      block.elements = elements;
      block.seed = begin;
      block.first = 7 * begin;
      blocks[begin % 2].push_back(block);
      begin += elements;
    }
  }
  for (const std::uint32_t split : {0u, 40'000u, 65'536u, 8u}) {
    LevelBlock rotated = {.begin = begin,
                          .elements = device_block_max,
                          .rounding = LevelRounding::rotated,
                          .most = 12,
                          .seed = begin,
                          .split = split,
                          .sent = split == 8 ? 8u : std::uint32_t{device_block_max},
                          .sums_centroids = true};
    rotated.class_bits = split == 40'000 ? 1 : 0;
    rotated.centroids[0] = {.count = 2, .values = {0.45f, 1.5f}, .thresholds = {1}};
    rotated.centroids[1] = {.count = 1, .values = {0.8f}, .thresholds = {}};
    blocks[split % 3 % 2].push_back(rotated);
    begin += device_block_max;
  }
  REQUIRE(begin <= n);
  DeviceArray<float> device_x(x);
  const char* error = nullptr;
  const auto device = cuda::make_codec_device(error);
  REQUIRE(device != nullptr);
  twins::HostCodecDevice host;
  const auto seen = levels_by(*device, device_x.data(), blocks);
  const auto wanted = levels_by(host, x.data(), blocks);
  for (const std::size_t slot : {0u, 1u}) {
    REQUIRE(seen[slot].tallies.size() == wanted[slot].tallies.size());
    for (std::size_t b = 0; b < wanted[slot].tallies.size(); ++b) {
      CAPTURE(b);
      const LevelTally& tally = seen[slot].tallies[b];
      const LevelTally& other = wanted[slot].tallies[b];
      CHECK(tally.is_levelled == other.is_levelled);
      CHECK(std::ranges::equal(tally.counts, other.counts));
      CHECK(std::ranges::equal(tally.sums, other.sums));
      const LevelRounding rounding = blocks[slot][b].rounding;
      const bool has_scales =
          rounding == LevelRounding::stochastic || rounding == LevelRounding::fitted;
      if (rounding == LevelRounding::sign) CHECK(tally.magnitudes == other.magnitudes);
      if (has_scales && other.is_levelled != 0) {
        const std::size_t buckets = bucket_count(blocks[slot][b]);
        CHECK(std::ranges::equal(std::span(tally.scales).first(buckets),
                                 std::span(other.scales).first(buckets)));
      }
      if (rounding == LevelRounding::rotated) {
        CHECK(tally.sum_squares == other.sum_squares);
        CHECK(tally.product == other.product);
        CHECK(tally.centroid_squares == other.centroid_squares);
      }
      CHECK(seen[slot].streams[b] == wanted[slot].streams[b]);
    }
  }
}

TEST_CASE("a CUDA codec device selects and multiplies like the host") {
  if (!has_device()) return;
  const char* error = nullptr;
  const auto device = cuda::make_codec_device(error);
  REQUIRE(device != nullptr);
  // The second vector is longer, so the device's memory must grow.
  for (const std::size_t n : {std::size_t{100'000}, device_select_max + 5000}) {
    CAPTURE(n);
    std::vector<float> x(n);
    kernels().gaussian(1, 1, 0, x.data(), n);
    for (float& v : x) v = std::round(v * 64) / 64;  // With ties.
    const float* there = nullptr;
    check(device->copy(x, there));

    const std::span<const float> all(x);
    const std::span<const float> all_there(there, n);
    const std::size_t cut = n / 3;
    const std::array here_runs = {all.first(cut), all.subspan(cut)};
    const std::array there_runs = {all_there.first(cut), all_there.subspan(cut)};
    Cutoff wanted = find_largest(here_runs, n / 50);
    Cutoff seen{};
    check(device->find_largest(there_runs, n / 50, seen));
    CHECK(seen == wanted);
    for (std::size_t begin = 0; begin < n; begin += device_select_max) {
      const std::size_t count = std::min(device_select_max, n - begin);
      std::vector<std::uint32_t> indices(count);
      indices.resize(select_largest(all.subspan(begin, count), wanted, indices.data()));
      std::vector<std::uint32_t> there_indices;
      check(device->select_largest(all_there.subspan(begin, count), seen, there_indices));
      CHECK(same_bits(there_indices, indices));
      CHECK(seen == wanted);
    }

    const MatrixSizes of = {.rows = 70, .cols = 1300, .rank = 3};
    std::vector<float> left(of.rank * of.rows);
    std::vector<float> right(of.rank * of.cols);
    kernels().gaussian(2, 2, 0, right.data(), right.size());
    std::vector<float> left_there(left.size());
    multiply(x.data(), of, right.data(), left.data());
    check(device->multiply(there, of, right.data(), left_there.data()));
    CHECK(same_bits(left_there, left));
    std::vector<float> right_there(right.size());
    multiply_transposed(x.data(), of, left.data(), right.data());
    check(device->multiply_transposed(there, of, left.data(), right_there.data()));
    CHECK(same_bits(right_there, right));
  }
}
