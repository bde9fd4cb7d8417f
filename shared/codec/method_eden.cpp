// Rotate, then take the nearest of 2^B centroids: Vargaftik 2022, "EDEN: Communication-Efficient
// and Robust Distributed Mean Estimation for Federated Learning"; for B = 1 it is DRIVE (Vargaftik
// 2021). After a random rotation the values of any x are near to normal, so the centroids (Lloyd
// 1982, Max 1960) are constants. The scale ||x||^2 / <R(x), Q(R(x))> makes the estimate unbiased:
// its part along x is x, and what else there is differs from seed to seed.
//
// The rotation is two rounds of random signs and a Walsh-Hadamard transform. After one, a single
// large value of x decides the signs of all others, which then are lost at every seed alike.
//
// A transform takes a power of two. A block is cut into such pieces, and the last is filled with
// zeros, which are sent like values: each step goes where the block becomes shorter, B bits for a
// filling value or 32 for the scale of one more piece. Pieces have 16 values at least: of fewer,
// there are too few rotations to be unbiased. A block of a few values is shorter as fp32, and
// written so.
//
// The bytes: u8 B, and nothing more for a block of zeros; u64 key, from which the signs follow; the
// scale of each piece, binary32; the levels of all pieces, in order. Piece p of a block takes the
// Philox streams 2p and 2p + 1 of the key.
//
// Fewer bits than one: randk:0.5+eden:1, which is unbiased too.
#include "shared/codec/codec_table.hpp"

#include "kernels/kernels.hpp"
#include "kernels/pack.hpp"
#include "shared/codec/block_key.hpp"
#include "shared/codec/coded_levels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace fl {

namespace {

constexpr std::size_t key_at = 1;
constexpr std::size_t scales_at = key_at + sizeof(std::uint64_t);
constexpr std::size_t scale_bits = 32;
constexpr std::size_t piece_min = 16;

/// The centroids of the standard normal distribution for 2^bits levels.
constexpr Centroids normal_centroids(int bits) {
  constexpr float values[4][8] = {{0.797884561f},
                                  {0.452780035f, 1.51041761f},
                                  {0.245094179f, 0.756005281f, 1.34390928f, 2.1519457f},
                                  {0.12839503f, 0.388048299f, 0.656759119f, 0.942340456f,
                                   1.2562312f, 1.61804639f, 2.06901723f, 2.73258957f}};
  Centroids out{};
  out.count = 1 << (bits - 1);
  for (int i = 0; i < out.count; ++i) out.values[i] = values[bits - 1][i];
  for (int i = 0; i + 1 < out.count; ++i) {
    out.thresholds[i] = (out.values[i] + out.values[i + 1]) / 2;
  }
  return out;
}

struct Piece {
  std::size_t begin;     // In the block,
  std::size_t elements;  // and how many of them.
  int log2_size;         // With what fills it.

  [[nodiscard]] std::size_t size() const { return std::size_t{1} << log2_size; }
};

std::size_t whole_piece(std::size_t elements) {
  return std::max(piece_min, std::bit_ceil(elements));
}

/// Of the pieces' scales and levels. More elements never take fewer bits.
std::size_t coded_bits(std::size_t elements, int bits_each) {
  if (elements == 0) return 0;
  const auto bits = static_cast<std::size_t>(bits_each);
  const std::size_t filled = scale_bits + whole_piece(elements) * bits;
  const std::size_t cut = std::bit_floor(elements);
  if (cut < piece_min) return filled;
  return std::min(filled, scale_bits + cut * bits + coded_bits(elements - cut, bits_each));
}

std::vector<Piece> pieces_of(std::size_t elements, int bits) {
  std::vector<Piece> pieces;
  for (std::size_t begin = 0; begin < elements;) {
    const std::size_t left = elements - begin;
    std::size_t size = whole_piece(left);
    if (coded_bits(left, bits) < scale_bits + size * static_cast<std::size_t>(bits)) {
      size = std::bit_floor(left);
    }
    pieces.push_back({begin, std::min(left, size), std::countr_zero(size)});
    begin += pieces.back().elements;
  }
  return pieces;
}

std::size_t size_of(std::span<const Piece> pieces) {
  std::size_t size = 0;
  for (const Piece& piece : pieces) size += piece.size();
  return size;
}

/// What makes values that are near to standard normal of a vector rotated with norm 1.
float second_factor(const Piece& piece) {
  return 1 / std::sqrt(static_cast<float>(piece.size()));  // Both to nearest, on every machine.
}

class Eden final : public Method {
 public:
  explicit Eden(int bits) : bits_(bits), centroids_(normal_centroids(bits)) {
    FL_ASSERT(bits >= 1 && bits <= 4);
  }

  std::string spec() const override { return fmt::format("eden:{}", bits_); }

  std::size_t block_bytes_max(std::size_t elements) const override {
    return 1 + std::min(elements * sizeof(float), body_bytes(elements));
  }

  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t seed, const MethodPlan&,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    out.resize(2);
    out[0] = static_cast<std::byte>(MethodId::eden);
    out[1] = static_cast<std::byte>(bits_);
    if (scan.max_abs == 0) return {};
    if (x.size_bytes() <= body_bytes(x.size())) {
      out.resize(1 + x.size_bytes());
      out[0] = static_cast<std::byte>(MethodId::fp32);
      std::memcpy(out.data() + 1, x.data(), x.size_bytes());
      return {};
    }

    const std::uint64_t key = block_key(seed, KeyFamily::quantizer, block);
    const auto pieces = pieces_of(x.size(), bits_);
    out.resize(1 + scales_at + pieces.size() * sizeof(float));
    const MutableBytes body = MutableBytes(out).subspan(1);
    store(body, key_at, key);
    const auto levels = levels_in(scratch.levels, size_of(pieces));
    std::size_t level_at = 0;
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      const auto values = x.subspan(pieces[p].begin, pieces[p].elements);
      const float scale =
          encode_piece(values, pieces[p], key, 2 * p, scratch, levels.data() + level_at);
      // No value that is decoded is larger than this product.
      FL_CHECK(check_scale(scale * centroids_.values[centroids_.count - 1], layout,
                           block.flat + pieces[p].begin, "eden"));
      store(body, scales_at + p * sizeof scale, scale);
      level_at += pieces[p].size();
    }
    append(levels, scratch, out);
    return {};
  }

 private:
  /// With the levels in bit fields; pieces are of 16 values at least, so these are whole bytes.
  [[nodiscard]] std::size_t body_bytes(std::size_t elements) const {
    return scales_at + coded_bits(elements, bits_) / 8;
  }

  /// Returns the scale.
  float encode_piece(std::span<const float> x, const Piece& piece, std::uint64_t key,
                     std::uint64_t stream, EncodeScratch& scratch, std::int16_t* levels) const {
    auto& rotated = scratch.rotated;
    rotated.assign(x.begin(), x.end());
    rotated.resize(piece.size());
    const double sum_squares = kernels().scan(x.data(), x.size()).sum_squares;
    // Below the smallest normal number its inverse would be infinite: such values are rotated
    // smaller than they should be, and cost precision only.
    const auto first_factor = static_cast<float>(1 / std::max(std::sqrt(sum_squares), 0x1p-126));
    kernels().flip_signs(rotated.data(), piece.size(), first_factor, key, stream);
    kernels().hadamard(rotated.data(), piece.log2_size);
    kernels().flip_signs(rotated.data(), piece.size(), second_factor(piece), key, stream + 1);
    kernels().hadamard(rotated.data(), piece.log2_size);
    const double product = kernels().nearest(rotated.data(), piece.size(), centroids_, levels);
    if (sum_squares == 0) return 0;
    return static_cast<float>(sum_squares * first_factor * static_cast<double>(piece.size()) /
                              product);
  }

  /// The levels in the shorter form.
  void append(std::span<const std::int16_t> levels, EncodeScratch& scratch,
              std::vector<std::byte>& out) const {
    const std::size_t before = out.size();
    out.resize(before + packed_code_bytes(levels.size(), bits_));
    // There are as many levels below 0 as from 0 on: of its alphabet the last is never used. Two
    // levels are equally frequent, and there is nothing to gain.
    const std::size_t coded = bits_ == 1
                                  ? 0
                                  : write_rans_levels(levels, centroids_.count, scratch.coded,
                                                      MutableBytes(out).subspan(before));
    if (coded > 0) {
      out[0] = static_cast<std::byte>(MethodId::eden_rans);
      out.resize(before + coded);
      return;
    }
    pack_codes(levels.data(), levels.size(), bits_,
               reinterpret_cast<std::uint8_t*>(out.data() + before));
  }

  int bits_;
  Centroids centroids_;
};

/// The levels of all pieces, in scratch.levels.
Result<void> read_codes(Bytes coded, bool is_rans, int bits, std::size_t size,
                        DecodeScratch& scratch) {
  const auto levels = levels_in(scratch.levels, size);
  if (is_rans) {
    const auto past = static_cast<std::int16_t>(1 << (bits - 1));
    if (!read_rans_levels(coded, past, scratch.coded, levels) ||
        std::ranges::find(levels, past) != levels.end()) {
      return Error(Errc::corrupt, "the entropy-coded levels are damaged");
    }
    return {};
  }
  FL_CHECK(check_body_bytes(coded, packed_code_bytes(size, bits)));
  if (!unpack_codes(reinterpret_cast<const std::uint8_t*>(coded.data()), size, bits,
                    levels.data())) {
    return Error(Errc::corrupt, "bits are set behind the last level");
  }
  return {};
}

}  // namespace

MethodResult parse_eden(const SpecParts& parts) {
  FL_CHECK(check_has_argument(parts, "eden wants its number of bits here, such as eden:2"));
  FL_TRY(const std::int32_t bits, parse_whole_argument(parts, "the bits of eden", 1, 4));
  FL_CHECK(check_no_settings(parts));
  return std::make_unique<Eden>(bits);
}

Result<void> decode_eden(Bytes body, bool is_rans, std::span<float> out, DecodeScratch& scratch) {
  if (body.empty()) return Error(Errc::corrupt, "the bits of eden are cut off");
  const int bits = load<std::uint8_t>(body);
  if (bits < 1 || bits > 4) return Error(Errc::corrupt, fmt::format("eden with {} bits", bits));
  if (body.size() == key_at) {
    std::ranges::fill(out, 0.0f);
    return {};
  }
  const auto pieces = pieces_of(out.size(), bits);
  const std::size_t codes_at = scales_at + pieces.size() * sizeof(float);
  if (body.size() < codes_at) return Error(Errc::corrupt, "eden scales are cut off");
  const auto key = load<std::uint64_t>(body, key_at);
  FL_CHECK(read_codes(body.subspan(codes_at), is_rans, bits, size_of(pieces), scratch));
  auto& rotated = scratch.rotated;
  std::size_t level_at = 0;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const Piece& piece = pieces[p];
    FL_TRY(const float scale, read_scale(body, scales_at + p * sizeof(float)));
    // Two transforms multiply by the size, which is a power of two: dividing here is exact.
    Centroids centroids = normal_centroids(bits);
    for (float& value : centroids.values) value /= static_cast<float>(piece.size());
    rotated.resize(std::max(rotated.size(), piece.size()));
    kernels().centroids_of(scratch.levels.data() + level_at, piece.size(), centroids,
                           rotated.data());
    kernels().hadamard(rotated.data(), piece.log2_size);
    kernels().flip_signs(rotated.data(), piece.size(), second_factor(piece), key, 2 * p + 1);
    kernels().hadamard(rotated.data(), piece.log2_size);
    kernels().flip_signs(rotated.data(), piece.size(), scale, key, 2 * p);
    std::copy_n(rotated.begin(), piece.elements, out.data() + piece.begin);
    level_at += piece.size();
  }
  return {};
}

}  // namespace fl
