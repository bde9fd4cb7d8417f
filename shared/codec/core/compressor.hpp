// The ways to code one block. A Compressor encodes with its settings; decoding needs the block's
// bytes only, because they say which method and settings made them.
//
// The bytes of a block: a method id, one byte, then what the method wrote:
//   0 fp32   elements as IEEE binary32
//   1 fp16   elements as IEEE binary16
//   2 qsgd   u16 S, u16 bucket - 1, the scale of each bucket as binary32, then for all elements in
//            order level + S in ceil(log2(2S + 1)) bits, lowest bits first, zeros to a whole byte
//   3 qsgd   as 2, but with the levels near their entropy (level_coder.hpp): the encoder takes what
//            is shorter
//   4 bf16   the upper 16 bits of each element's binary32
//   5 kbit   u8 B, u8 mode, two u16 that cut the block into channels, for each of these one or two
//            binary32 (kbit.cpp says which), levels as in 2 with S = 2^(B-1) - 1
//   6 terngrad  the scale as binary32, levels as in 2 with S = 1
//   7 sign   the scale as binary32, then a bit for each element, 1 for negative, lowest bits first,
//            zeros to a whole byte
//   8 kbit, 9 terngrad  as 5 and 6, but with levels as in 3
//   10 terngrad  as 6, but with few levels that are not 0 (zero_run_coder.hpp)
//   16, 17   some of the elements only, around a block of another method (sparse_block.hpp)
//   24, 25, 31, 32 ecuq  ecuq.cpp says it
//   26 eden  u8 B; unless all is zeros u64 key, a binary32 for each piece of the block, then the
//            levels of all pieces, each + 2^(B-1), in B bits (eden.cpp)
//   27 eden  as 26, but with levels as in 3
//   28 powersgd, 29 gradzip  parts of the factors of a matrix (low_rank_block.hpp), of which one
//   lies in
//            the tensor's first block: the one method whose blocks don't decode alone
//   30 countsketch  a sketch of the largest values (countsketch.cpp)
//   33 parts  a large block, part by part (large_block.hpp)
//   34, 35 eden  as 26 and 27, of a fraction of bits (eden.cpp)
//   36 fp32, 37 fp16, 38 bf16  as 0, 1 and 4, near their entropy (float_coder.hpp)
//   39 countsketch  one that may be added to others before it is read (sketch_block.hpp)
#pragma once

#include "kernels/codec_device.hpp"
#include "kernels/kernels.hpp"
#include "shared/base/error.hpp"
#include "shared/base/io/bytes.hpp"
#include "shared/codec/core/block_map.hpp"
#include "shared/codec/core/plan.hpp"
#include "shared/codec/entropy/level_coder.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace fl {

enum class BlockFormat : std::uint8_t {
  fp32 = 0,
  fp16 = 1,
  qsgd = 2,
  qsgd_rans = 3,
  bf16 = 4,
  kbit = 5,
  terngrad = 6,
  sign = 7,
  kbit_rans = 8,
  terngrad_rans = 9,
  terngrad_runs = 10,
  sparse = 16,
  randk = 17,
  ecuq_dither = 24,
  ecuq_centroid = 25,
  eden = 26,
  eden_rans = 27,
  powersgd = 28,
  gradzip = 29,
  countsketch = 30,
  ecuq_dither_runs = 31,
  ecuq_centroid_runs = 32,
  parts = 33,
  eden_mixed = 34,
  eden_mixed_rans = 35,
  fp32_coded = 36,
  fp16_coded = 37,
  bf16_coded = 38,
  countsketch_sum = 39,
};

/// Of a sketch, or of all of a tensor's, each with its share (sketch_block.hpp).
struct SketchShape {
  std::uint32_t rows;     // An odd number.
  std::uint32_t columns;  // Cells of a row.
  bool operator==(const SketchShape&) const = default;
};

/// Which sketches of a codec's payloads can be added up before they are read.
struct SummedSketches {
  std::uint32_t block_elements = 0;  // Of the payloads.
  /// None where the tensor has no such sketches; empty: no tensor has.
  std::vector<std::optional<SketchShape>> of_tensor = {};
};

/// Of countsketch, at both ends.
struct SketchScratch {
  std::vector<std::uint32_t> words;
  std::vector<std::uint32_t> selected;
  std::vector<float> estimates;
  std::vector<float> cells;
};

/// Memory that encoding reuses from block to block; one thread at a time.
struct EncodeScratch {
  std::vector<std::int16_t> levels;
  std::vector<std::uint32_t> words;  // Of floats.
  LevelScratch coded;
  std::vector<float> rotated;
  SketchScratch sketch;
};

struct LowRankPlan;  // low_rank_block.hpp.
struct SketchPlan;   // countsketch.cpp.

/// What a Compressor knows of a whole vector while its blocks are encoded.
struct CompressorPlan {
  float step = 0;  // 0: each block finds its own.
  std::shared_ptr<const LowRankPlan> low_rank = {};
  std::shared_ptr<const SketchPlan> sketches = {};  // Null: none were made before.
};

/// What a method does of a block whose values a device rounds and codes (device_coder.hpp).
/// Immutable; any thread.
class LevelCoder {
 public:
  virtual ~LevelCoder() = default;
  /// Of fewer values there are no tables (adaptive_coder.hpp), and a block must be coded here.
  [[nodiscard]] virtual std::size_t elements_min() const { return adaptive_levels_max + 1; }
  /// Whether the device saves more than it takes to copy the vector there.
  [[nodiscard]] virtual bool is_worth_a_copy() const { return true; }
  /// Whether it saves so much that other tensors' blocks need not be large (block_map.hpp), as it
  /// codes none that are.
  [[nodiscard]] virtual bool is_worth_small_blocks() const { return true; }
  /// How they are rounded; none where the block must be coded here.
  [[nodiscard]] virtual std::optional<LevelBlock> level_block(const Block& block,
                                                              std::uint64_t seed,
                                                              const CompressorPlan& plan) const = 0;
  /// How their levels are coded, and in `out` all of the block's bytes but the stream. The code's
  /// `top` is 0 where the block must be coded here.
  [[nodiscard]] virtual LevelCode level_code(const LevelBlock& block, const LevelTally& tally,
                                             std::vector<std::byte>& out) const = 0;
};

/// Immutable; any thread.
class Compressor {
 public:
  virtual ~Compressor() = default;

  /// The shortest spec that parses to this method.
  [[nodiscard]] virtual std::string spec() const = 0;
  [[nodiscard]] virtual std::size_t block_bytes_max(std::size_t elements) const = 0;
  /// Of this block of this tensor; here for methods that are all the same to.
  [[nodiscard]] virtual std::size_t bytes_max_of(const Layout::Tensor& tensor,
                                                 const Block& block) const;
  /// Whether a block must be a part of its tensor as it is, and can't be the values that a selector
  /// has gathered.
  [[nodiscard]] virtual bool needs_places() const { return false; }
  /// Before the first block; here for methods that plan nothing. Behind a selector there is no
  /// plan.
  [[nodiscard]] virtual CompressorPlan plan(const VectorToPlan& vector) const;
  /// Whether a device can do a part of plan().
  [[nodiscard]] virtual bool plans_on_device() const { return false; }
  /// Whether a block with many zeros is shorter as a sparse one (sparse_block.hpp) of the others,
  /// which then decode to the same.
  [[nodiscard]] virtual bool leaves_out_zeros() const { return false; }
  /// Whether it sends so few of the values that a block of part_elements_max has a few bytes.
  [[nodiscard]] virtual bool sends_few() const { return false; }
  /// Of the sketches, whole, that can be added up before they are read; none: it makes none.
  [[nodiscard]] virtual std::optional<SketchShape> summed_sketch() const { return std::nullopt; }
  /// Replaces `out` by the block's bytes. The values are finite, part_elements_max at most; `scan`
  /// is theirs. Random choices depend on (seed, block.tensor, element in the tensor) alone. Errors
  /// name tensor[index].
  [[nodiscard]] virtual Result<void> encode(std::span<const float> x, const Scan& scan,
                                            const Layout& layout, const Block& block,
                                            std::uint64_t seed, const CompressorPlan& plan,
                                            EncodeScratch& scratch,
                                            std::vector<std::byte>& out) const = 0;
  /// The same for more of them. False: here it can't be done, and the parts are to be coded; here
  /// for methods that never can.
  [[nodiscard]] virtual Result<bool> encode_large(std::span<const float> x, const Scan& scan,
                                                  const Layout& layout, const Block& block,
                                                  std::uint64_t seed, const CompressorPlan& plan,
                                                  EncodeScratch& scratch,
                                                  std::vector<std::byte>& out) const;
  /// Null: no device can do a part of encode(), of any block.
  [[nodiscard]] virtual const LevelCoder* level_coder() const { return nullptr; }
};

enum class EcuqMode { dither, centroid };

[[nodiscard]] std::unique_ptr<const Compressor> make_fp32();
/// The one for values that a selector has selected, if its spec names no other,
[[nodiscard]] std::unique_ptr<const Compressor> make_lossless();
/// and that others go back to. Never longer than fp32.
[[nodiscard]] const Compressor& dense_compressor();

/// Memory that decoding reuses from block to block; one thread at a time.
struct DecodeScratch {
  std::vector<std::uint16_t> halves;
  std::vector<std::uint32_t> words;
  std::vector<std::int16_t> levels;
  LevelScratch coded;
  std::vector<std::uint32_t> indices;
  std::vector<float> values;               // Of a sparse block, while the block in it is decoded.
  std::vector<std::uint32_t> run_indices;  // Of ecuq's runs, which may be in it,
  std::vector<float> run_values;           // and what is there.
  std::vector<float> rotated;
  SketchScratch sketch;
};

/// Fills `out`, the block's elements, from bytes that need not be trusted. fp32, fp16, bf16,
/// kbit and eden may give values that are not finite. Blocks of low rank are refused. Errors are
/// corrupt.
[[nodiscard]] Result<void> decode_block(Bytes bytes, std::span<float> out, DecodeScratch& scratch);

/// The same for the methods that code every element: sparse blocks and sketches are refused too.
/// `out` may be scratch.values.
[[nodiscard]] Result<void> decode_dense_block(Bytes bytes, std::span<float> out,
                                              DecodeScratch& scratch);

/// The same for blocks of "none" and "lossless"; of any size.
[[nodiscard]] Result<void> decode_lossless_block(Bytes bytes, std::span<float> out,
                                                 DecodeScratch& scratch);

// One decoder for each id, for decode_block: `body` is what follows the id.
[[nodiscard]] Result<void> decode_fp32(Bytes body, std::span<float> out);
[[nodiscard]] Result<void> decode_fp32_coded(Bytes body, std::span<float> out,
                                             DecodeScratch& scratch);
[[nodiscard]] Result<void> decode_fp16(Bytes body, bool is_coded, std::span<float> out,
                                       DecodeScratch& scratch);
[[nodiscard]] Result<void> decode_qsgd(Bytes body, bool is_rans, std::span<float> out,
                                       DecodeScratch& scratch);
[[nodiscard]] Result<void> decode_bf16(Bytes body, bool is_coded, std::span<float> out,
                                       DecodeScratch& scratch);
[[nodiscard]] Result<void> decode_kbit(Bytes body, bool is_rans, std::span<float> out,
                                       DecodeScratch& scratch);
[[nodiscard]] Result<void> decode_terngrad(Bytes body, bool is_rans, std::span<float> out,
                                           DecodeScratch& scratch);
[[nodiscard]] Result<void> decode_terngrad_runs(Bytes body, std::span<float> out,
                                                DecodeScratch& scratch);
[[nodiscard]] Result<void> decode_sign(Bytes body, std::span<float> out);
/// `is_mixed`: its values are not all of the same number of bits.
[[nodiscard]] Result<void> decode_eden(Bytes body, bool is_mixed, bool is_rans,
                                       std::span<float> out, DecodeScratch& scratch);
[[nodiscard]] Result<void> decode_countsketch(Bytes body, std::span<float> out,
                                              DecodeScratch& scratch);
[[nodiscard]] Result<void> decode_countsketch_sum(Bytes body, std::span<float> out,
                                                  DecodeScratch& scratch);
[[nodiscard]] Result<void> decode_ecuq(Bytes body, EcuqMode mode, std::span<float> out,
                                       DecodeScratch& scratch);
[[nodiscard]] Result<void> decode_ecuq_dither_runs(Bytes body, std::span<float> out,
                                                   DecodeScratch& scratch);

/// Errors corrupt, unless `body` has exactly the bytes that the method makes of these elements.
[[nodiscard]] Result<void> check_body_bytes(Bytes body, std::size_t expected);

}  // namespace fl
