// SPDX-License-Identifier: Apache-2.0
// "eden": a random rotation R, then rounding Q of each value to the nearest of 2^B centroids.
// Vargaftik 2022, "EDEN: Communication-Efficient and Robust Distributed Mean Estimation for
// Federated Learning"; with B = 1 it is DRIVE (Vargaftik 2021). The rotated values of any x are
// nearly Gaussian, so the centroids (Lloyd 1982, Max 1960) are constants.
//
// The decoded values are scaled by ||x||^2 / <R(x), Q(R(x))>, which makes the estimate unbiased:
// its component along x is x, and the rest changes from seed to seed. With error feedback the scale
// is <R(x), Q(R(x))> / ||Q(R(x))||^2 (the paper's "biased" scale), which has the least squared
// error: for Gaussian values at one bit 0.36 of their sum of squares instead of 0.57, and never
// more than the sum itself.
//
// The rotation is random signs and a Walsh-Hadamard transform, twice. After only one round, a
// single large value of x would decide the signs of all others, which would be lost with every
// seed.
//
// The transform needs a power of two of values. So a block is cut into pieces, and the last piece
// is filled with zeros, which are sent like values. pieces_of() chooses what makes the block
// shorter: more filling zeros, or one more piece with its scale of 32 bits. A piece has at least 16
// values, because with fewer there are too few rotations to be unbiased. A block of a few values is
// written as fp32 if that is shorter.
//
// If the number of bits has a fraction, such as 1.5, the first values of each rotated piece have 2
// bits and the others 1. After a rotation it does not matter which values have more bits (the paper
// draws them at random). Below one bit the other values are not sent and decode to 0. The unbiased
// scale is then computed as if all were sent, and multiplied by size / sent. (The paper draws the
// values before the rotation: its error is the same on average, but not for each vector.)
//
// The bytes for a whole number of bits: u8 B, and nothing else if all values are 0; u64 key of the
// signs; the scale of each piece, binary32; the levels of all pieces, in order. For a fraction of
// bits: u16 1000 * B instead of u8 B; and the levels with more bits of all pieces come first, then
// the others, in bit fields, or as classes 0 and 1 of one entropy code. Piece p of a block uses the
// Philox streams 2p and 2p + 1 of the key.
#include "shared/codec/spec/table.hpp"

#include "kernels/generic/element_math.hpp"
#include "kernels/generic/pack.hpp"
#include "kernels/kernels.hpp"
#include "shared/codec/core/block_key.hpp"
#include "shared/codec/device/device_levels.hpp"
#include "shared/codec/entropy/quantized_levels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

namespace fl::codec {

namespace {

// Mixed blocks are those with a fraction of bits for each value.
constexpr BlockFormat eden_packed{26};
constexpr BlockFormat eden_rans{27};
constexpr BlockFormat eden_mixed{34};
constexpr BlockFormat eden_mixed_rans{35};

constexpr std::size_t scale_bits = 32;
constexpr std::size_t piece_min = 16;
constexpr std::int32_t bits_most = 4;
constexpr std::int32_t thousandths_min = 50;
constexpr std::int32_t thousandths_max = 1000 * bits_most;

/// How many bits the values of a rotated piece have.
struct EdenBits {
  std::int32_t thousandths;  // 1000 times the average; thousandths_min to thousandths_max.

  [[nodiscard]] bool is_whole() const { return thousandths % 1000 == 0; }
  /// The bits of each of the first values, 1 to bits_most.
  [[nodiscard]] int more() const { return (thousandths + 999) / 1000; }
  /// The bits of each of the other values, if there are any. 0: they are not sent.
  [[nodiscard]] int fewer() const { return more() - 1; }
  /// How many values of a piece have more() bits. It is a multiple of 8, so that bit fields are
  /// whole bytes.
  [[nodiscard]] std::size_t count_of_more(std::size_t piece) const {
    if (is_whole()) return piece;
    const std::size_t share = static_cast<std::size_t>(thousandths - 1000 * fewer()) * piece;
    const std::size_t most = fewer() > 0 ? piece - 8 : piece;
    return std::clamp<std::size_t>((share + 4000) / 8000 * 8, 8, most);
  }
  /// The bits of all levels of a piece with this size, in bit fields.
  [[nodiscard]] std::size_t bits_of(std::size_t piece) const {
    return piece * static_cast<std::size_t>(fewer()) + count_of_more(piece);
  }
  /// The bytes that say how many bits there are, in a block's body.
  [[nodiscard]] std::size_t own_bytes() const { return is_whole() ? 1 : 2; }
  [[nodiscard]] std::size_t scales_at() const { return own_bytes() + sizeof(std::uint64_t); }
};

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
  std::size_t begin;     // The piece's first element in the block.
  std::size_t elements;  // Without the filling zeros.
  int log2_size;         // With the filling zeros.

  [[nodiscard]] std::size_t size() const { return std::size_t{1} << log2_size; }
};

/// The size of one piece that holds all these elements.
std::size_t whole_piece(std::size_t elements) {
  return std::max(piece_min, std::bit_ceil(elements));
}

/// The bits of the scales and levels of the pieces for these elements, in bit fields. More elements
/// never take fewer bits.
std::size_t coded_bits(std::size_t elements, const EdenBits& bits) {
  if (elements == 0) return 0;
  const std::size_t filled = scale_bits + bits.bits_of(whole_piece(elements));
  const std::size_t cut = std::bit_floor(elements);
  if (cut < piece_min) return filled;
  return std::min(filled, scale_bits + bits.bits_of(cut) + coded_bits(elements - cut, bits));
}

std::vector<Piece> pieces_of(std::size_t elements, const EdenBits& bits) {
  std::vector<Piece> pieces;
  for (std::size_t begin = 0; begin < elements;) {
    const std::size_t left = elements - begin;
    std::size_t size = whole_piece(left);
    if (coded_bits(left, bits) < scale_bits + bits.bits_of(size)) size = std::bit_floor(left);
    pieces.push_back({begin, std::min(left, size), std::countr_zero(size)});
    begin += pieces.back().elements;
  }
  return pieces;
}

/// How many levels all pieces together send.
struct LevelCounts {
  LevelCounts(std::span<const Piece> pieces, const EdenBits& bits) {
    for (const Piece& piece : pieces) {
      more += bits.count_of_more(piece.size());
      if (bits.fewer() > 0) fewer += piece.size() - bits.count_of_more(piece.size());
    }
  }
  [[nodiscard]] std::size_t all() const { return more + fewer; }

  std::size_t more = 0;   // Levels with more bits. They come first.
  std::size_t fewer = 0;  // Levels with fewer bits.
};

/// Levels with more bits are class 0, the others class 1.
LevelClasses classes_of(const LevelCounts& counts, LevelScratch& scratch) {
  if (counts.fewer == 0) return {};
  scratch.classes.resize(std::max(scratch.classes.size(), counts.all()));
  const auto of = std::span(scratch.classes).first(counts.all());
  std::ranges::fill(of.first(counts.more), std::uint8_t{0});
  std::ranges::fill(of.subspan(counts.more), std::uint8_t{1});
  return {.of = of, .count = 2};
}

/// The factor with the second random signs. A rotated vector of norm 1 then has nearly standard
/// normal values.
float second_factor(const Piece& piece) {
  return 1 / std::sqrt(static_cast<float>(piece.size()));  // IEEE gives the same bits everywhere.
}

class Eden final : public Compressor, public LevelCoder {
 public:
  Eden(const EdenBits& bits, bool has_feedback)
      : bits_(bits),
        has_feedback_(has_feedback),
        more_(normal_centroids(bits.more())),
        fewer_(normal_centroids(std::max(1, bits.fewer()))) {
    FL_ASSERT(bits.thousandths >= thousandths_min && bits.thousandths <= thousandths_max);
  }

  std::string spec() const override { return fmt::format("eden:{}", bits_.thousandths / 1000.0); }

  std::size_t block_bytes_max(std::size_t elements) const override {
    return 1 + std::min(elements * sizeof(float), body_bytes(elements));
  }

  Result<void> encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                      const Block& block, std::uint64_t seed, const CompressorPlan&,
                      EncodeScratch& scratch, std::vector<std::byte>& out) const override {
    begin_block(out);
    if (scan.max_abs == 0) return {};
    if (x.size_bytes() <= body_bytes(x.size())) {
      out.resize(1 + x.size_bytes());
      out[0] = static_cast<std::byte>(BlockFormat::fp32);
      std::memcpy(out.data() + 1, x.data(), x.size_bytes());
      return {};
    }

    const std::uint64_t key = block_key(seed, KeyFamily::quantizer, block);
    const auto pieces = pieces_of(x.size(), bits_);
    const std::size_t scales_at = 1 + bits_.scales_at();
    out.resize(scales_at + pieces.size() * sizeof(float));
    store(MutableBytes(out), 1 + bits_.own_bytes(), key);
    const LevelCounts counts(pieces, bits_);
    // After the levels there is room for the levels of one piece that are not sent.
    const std::size_t not_sent = bits_.fewer() == 0 ? pieces.front().size() : 0;
    const auto levels = levels_in(scratch.levels, counts.all() + not_sent).first(counts.all());
    std::int16_t* more = levels.data();
    std::int16_t* fewer = more + counts.more;
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      const auto values = x.subspan(pieces[p].begin, pieces[p].elements);
      const float scale = encode_piece(values, pieces[p], key, 2 * p, scratch, more, fewer);
      // No decoded value is larger than this product.
      FL_CHECK(check_scale(scale * more_.values[more_.count - 1], layout,
                           block.flat + pieces[p].begin, "eden"));
      store(MutableBytes(out), scales_at + p * sizeof scale, scale);
    }
    append(levels, counts, scratch, out);
    return {};
  }

  const LevelCoder* level_coder() const override { return this; }

  /// The device codes only full blocks, which are one piece.
  std::size_t elements_min() const override { return device_block_max; }

  /// Levels of one bit have no entropy code, so the device saves less.
  bool is_worth_small_blocks() const override { return bits_.more() > 1; }

  std::optional<LevelBlock> level_block(const Block& block, std::uint64_t seed,
                                        const CompressorPlan&) const override {
    const auto more = static_cast<std::uint32_t>(bits_.count_of_more(block.elements));
    return LevelBlock{.begin = block.flat,
                      .elements = block.elements,
                      .rounding = LevelRounding::rotated,
                      .most = std::numeric_limits<float>::max(),
                      .seed = block_key(seed, KeyFamily::quantizer, block),
                      .class_bits = bits_.is_whole() || bits_.fewer() == 0 ? 0 : 1,
                      .split = more,
                      .sent = bits_.fewer() > 0 ? block.elements : more,
                      .sums_centroids = has_feedback_,
                      .centroids = {more_, fewer_}};
  }

  LevelCode level_code(const LevelBlock& block, const LevelTally& tally,
                       std::vector<std::byte>& out) const override {
    if (tally.is_levelled == 0) return {};
    const float scale = scale_of({.sum_squares = tally.sum_squares,
                                  .product = tally.product,
                                  .centroid_squares = tally.centroid_squares},
                                 block.elements, block.sent);
    if (scale * more_.values[more_.count - 1] > scale_max) return {};
    begin_block(out);
    const bool is_packed = bits_.more() == 1;  // An entropy code gains nothing: see append().
    if (!is_packed) out[0] = static_cast<std::byte>(coded_id());
    const std::size_t key_at = out.size();
    out.resize(1 + bits_.scales_at() + sizeof scale);
    store(MutableBytes(out), key_at, block.seed);
    store(MutableBytes(out), 1 + bits_.scales_at(), scale);
    if (is_packed) return packed_levels(block.sent);
    return append_level_tables(block, tally, more_.count, block.class_bits,
                               bits_.bits_of(block.elements) / 8, out);
  }

 private:
  /// Writes the id and the number of bits.
  void begin_block(std::vector<std::byte>& out) const {
    out.resize(1 + bits_.own_bytes());
    out[0] = static_cast<std::byte>(bits_.is_whole() ? eden_packed : eden_mixed);
    if (bits_.is_whole()) {
      out[1] = static_cast<std::byte>(bits_.more());
    } else {
      store(MutableBytes(out), 1, static_cast<std::uint16_t>(bits_.thousandths));
    }
  }
  [[nodiscard]] BlockFormat coded_id() const {
    return bits_.is_whole() ? eden_rans : eden_mixed_rans;
  }

  /// The sums over a piece from which its scale follows.
  struct Sums {
    double sum_squares;       // The sum of squares of the piece's values.
    double product;           // The inner product of its rotated values and their centroids.
    double centroid_squares;  // With error feedback: the sum of squares of the sent centroids.
  };

  /// The scale of a piece of `size` values, of which `sent` are sent. The decoder multiplies the
  /// centroids by it.
  [[nodiscard]] float scale_of(const Sums& of, std::size_t size, std::size_t sent) const {
    if (of.sum_squares == 0) return 0;
    const auto factor = static_cast<double>(element::unit_factor(of.sum_squares));
    if (has_feedback_) return static_cast<float>(of.product / of.centroid_squares / factor);
    const double scale = of.sum_squares * factor * static_cast<double>(size) / of.product;
    return static_cast<float>(scale * (static_cast<double>(size) / static_cast<double>(sent)));
  }

  /// The bytes of a block without its id, with the levels in bit fields. A piece has at least 16
  /// values, so the levels take whole bytes.
  [[nodiscard]] std::size_t body_bytes(std::size_t elements) const {
    return bits_.scales_at() + coded_bits(elements, bits_) / 8;
  }

  /// Encodes one piece. Returns its scale, writes its levels to `more` and `fewer`, and advances
  /// both.
  float encode_piece(std::span<const float> x, const Piece& piece, std::uint64_t key,
                     std::uint64_t stream, EncodeScratch& scratch, std::int16_t*& more,
                     std::int16_t*& fewer) const {
    auto& rotated = scratch.rotated;
    rotated.assign(x.begin(), x.end());
    rotated.resize(piece.size());
    Sums sums = {.sum_squares = kernels().scan(x.data(), x.size()).sum_squares,
                 .product = 0,
                 .centroid_squares = 0};
    kernels().flip_signs(rotated.data(), piece.size(), element::unit_factor(sums.sum_squares), key,
                         stream);
    kernels().hadamard(rotated.data(), piece.log2_size);
    kernels().flip_signs(rotated.data(), piece.size(), second_factor(piece), key, stream + 1);
    kernels().hadamard(rotated.data(), piece.log2_size);
    const std::size_t count = bits_.count_of_more(piece.size());
    const std::size_t rest = piece.size() - count;
    const std::size_t sent = bits_.fewer() > 0 ? piece.size() : count;
    sums.product = kernels().nearest(rotated.data(), count, more_, more);
    // With error feedback only values that are sent count.
    if (rest > 0 && !(has_feedback_ && sent == count))
      sums.product += kernels().nearest(rotated.data() + count, rest, fewer_, fewer);
    if (has_feedback_) {
      kernels().centroids_of(more, count, more_, rotated.data());
      if (sent > count) kernels().centroids_of(fewer, rest, fewer_, rotated.data() + count);
      sums.centroid_squares = kernels().scan(rotated.data(), sent).sum_squares;
    }
    more += count;
    fewer += sent - count;
    return scale_of(sums, piece.size(), sent);
  }

  /// Appends the levels in the shorter form: bit fields or an entropy code.
  void append(std::span<const std::int16_t> levels, const LevelCounts& counts,
              EncodeScratch& scratch, std::vector<std::byte>& out) const {
    const std::size_t before = out.size();
    const std::size_t bytes_of_more = packed_code_bytes(counts.more, bits_.more());
    out.resize(before + bytes_of_more +
               (counts.fewer > 0 ? packed_code_bytes(counts.fewer, bits_.fewer()) : 0));
    // The levels are -count to count - 1, so the last level of the coder's alphabet is never used.
    // With one bit both levels are equally frequent, and an entropy code gains nothing.
    const std::size_t coded = bits_.more() == 1
                                  ? 0
                                  : write_rans_levels(levels, more_.count, scratch.coded,
                                                      MutableBytes(out).subspan(before),
                                                      classes_of(counts, scratch.coded));
    if (coded > 0) {
      out[0] = static_cast<std::byte>(coded_id());
      out.resize(before + coded);
      return;
    }
    auto* const fields = reinterpret_cast<std::uint8_t*>(out.data() + before);
    pack_codes(levels.data(), counts.more, bits_.more(), fields);
    if (counts.fewer > 0)
      pack_codes(levels.data() + counts.more, counts.fewer, bits_.fewer(), fields + bytes_of_more);
  }

  EdenBits bits_;
  bool has_feedback_;
  Centroids more_;
  Centroids fewer_;
};

/// Whether all levels are from -count to count - 1, as they are in bit fields.
bool are_codes(std::span<const std::int16_t> levels, std::int32_t count) {
  std::int16_t least = 0;
  std::int16_t most = 0;
  for (const std::int16_t level : levels) {
    least = std::min(least, level);
    most = std::max(most, level);
  }
  return least >= -count && most < count;
}

/// Reads the levels of all pieces into scratch.levels.
Result<void> read_codes(Bytes coded, bool is_rans, const EdenBits& bits, const LevelCounts& counts,
                        DecodeScratch& scratch) {
  const auto levels = levels_in(scratch.levels, counts.all());
  const int more = bits.more();
  const int fewer = bits.fewer();
  if (is_rans) {
    if (!read_rans_levels(coded, 1 << (more - 1), scratch.coded, levels,
                          classes_of(counts, scratch.coded)) ||
        !are_codes(levels.first(counts.more), 1 << (more - 1)) ||
        (counts.fewer > 0 && !are_codes(levels.subspan(counts.more), 1 << (fewer - 1))))
      return Error(Errc::corrupt, "the entropy-coded levels are damaged");
    return {};
  }
  const std::size_t bytes_of_more = packed_code_bytes(counts.more, more);
  const std::size_t rest = counts.fewer > 0 ? packed_code_bytes(counts.fewer, fewer) : 0;
  FL_CHECK(check_body_bytes(coded, bytes_of_more + rest));
  const auto* const fields = reinterpret_cast<const std::uint8_t*>(coded.data());
  if (!unpack_codes(fields, counts.more, more, levels.data()) ||
      (counts.fewer > 0 &&
       !unpack_codes(fields + bytes_of_more, counts.fewer, fewer, levels.data() + counts.more)))
    return Error(Errc::corrupt, "bits are set after the last level");
  return {};
}

Result<EdenBits> read_bits(Bytes body, bool is_mixed) {
  if (body.size() < (is_mixed ? 2 : 1)) return Error(Errc::corrupt, "the bits of eden are cut off");
  const std::int32_t thousandths =
      is_mixed ? load<std::uint16_t>(body) : 1000 * load<std::uint8_t>(body);
  const EdenBits bits = {thousandths};
  if (thousandths < thousandths_min || thousandths > thousandths_max || bits.is_whole() == is_mixed)
    return Error(Errc::corrupt,
                 fmt::format("eden with {} bits is not allowed", thousandths / 1000.0));
  return bits;
}

/// The centroids divided by the piece's size, because two transforms multiply by it. The size is a
/// power of two, so the division is exact.
Centroids centroids_for(int bits, const Piece& piece) {
  Centroids centroids = normal_centroids(bits);
  for (float& value : centroids.values) value /= static_cast<float>(piece.size());
  return centroids;
}

}  // namespace

CompressorResult parse_eden(const SpecParts& parts) {
  FL_CHECK(check_has_argument(parts, "eden needs a number of bits here, such as eden:2"));
  const auto parse_one = [&](std::string_view text) {
    return parse_real<double>(
        parts.whole, text,
        fmt::format("the bits of eden must be a number from {} to {} with at most three decimals",
                    thousandths_min / 1000.0, bits_most),
        [](double bits) {
          const double in_thousandths = bits * 1000;
          return in_thousandths >= thousandths_min && in_thousandths <= thousandths_max &&
                 std::fabs(in_thousandths - std::round(in_thousandths)) < 1e-6;
        });
  };
  FL_TRY(const double bits, parse_argument(parts, parse_one));
  FL_CHECK(check_no_settings(parts));
  return std::make_unique<Eden>(EdenBits{static_cast<std::int32_t>(std::lround(bits * 1000))},
                                parts.error_feedback);
}

Result<void> decode_eden(BlockFormat id, Bytes body, std::span<float> out, DecodeScratch& scratch) {
  const bool is_mixed = id == eden_mixed || id == eden_mixed_rans;
  const bool is_rans = id == eden_rans || id == eden_mixed_rans;
  FL_TRY(const EdenBits bits, read_bits(body, is_mixed));
  const std::size_t key_at = bits.own_bytes();
  if (body.size() == key_at) {
    std::ranges::fill(out, 0.0f);
    return {};
  }
  const auto pieces = pieces_of(out.size(), bits);
  const std::size_t scales_at = bits.scales_at();
  const std::size_t codes_at = scales_at + pieces.size() * sizeof(float);
  if (body.size() < codes_at) return Error(Errc::corrupt, "eden scales are cut off");
  const auto key = load<std::uint64_t>(body, key_at);
  const LevelCounts counts(pieces, bits);
  FL_CHECK(read_codes(body.subspan(codes_at), is_rans, bits, counts, scratch));
  auto& rotated = scratch.rotated;
  const std::int16_t* more = scratch.levels.data();
  const std::int16_t* fewer = more + counts.more;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const Piece& piece = pieces[p];
    FL_TRY(const float scale, read_scale(body, scales_at + p * sizeof(float)));
    rotated.resize(std::max(rotated.size(), piece.size()));
    const std::size_t count = bits.count_of_more(piece.size());
    const std::size_t rest = piece.size() - count;
    kernels().centroids_of(more, count, centroids_for(bits.more(), piece), rotated.data());
    more += count;
    if (bits.fewer() == 0) {
      std::fill_n(rotated.data() + count, rest, 0.0f);
    } else if (rest > 0) {
      kernels().centroids_of(fewer, rest, centroids_for(bits.fewer(), piece),
                             rotated.data() + count);
      fewer += rest;
    }
    kernels().hadamard(rotated.data(), piece.log2_size);
    kernels().flip_signs(rotated.data(), piece.size(), second_factor(piece), key, 2 * p + 1);
    kernels().hadamard(rotated.data(), piece.log2_size);
    kernels().flip_signs(rotated.data(), piece.size(), scale, key, 2 * p);
    std::copy_n(rotated.begin(), piece.elements, out.data() + piece.begin);
  }
  return {};
}

}  // namespace fl::codec
