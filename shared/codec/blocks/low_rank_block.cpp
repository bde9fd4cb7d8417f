// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/blocks/low_rank_block.hpp"

#include "kernels/kernels.hpp"
#include "shared/codec/blocks/decode.hpp"
#include "shared/codec/core/block_key.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fl::codec {

namespace {

constexpr std::size_t rank_head_bytes = 1 + 1;  // Format id and K.

// If less than this fraction of a vector's norm is left after the projections onto the others are
// subtracted, the rest is only their rounding error.
constexpr double dependent = 0x1p-40;

Error bad_block(std::string_view what) { return {Errc::corrupt, std::string(what)}; }

double dot_of(const double* a, const double* b, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// The rows of the matrix that a block touches.
struct RowRange {
  std::uint64_t first;
  std::uint64_t count;
};

RowRange rows_of(const Block& block, const MatrixShape& shape) {
  const std::uint64_t first = block.first / shape.cols;
  const std::uint64_t last = (block.first + block.elements - 1) / shape.cols;
  return {.first = first, .count = last - first + 1};
}

/// The bytes before the floats.
std::size_t head_bytes_of(BlockFormat id, const Block& block) {
  const bool has_key = id == BlockFormat::gradzip && block.first == 0;
  return rank_head_bytes + (has_key ? sizeof(std::uint64_t) : 0);
}

/// How many floats of R are in a block.
std::size_t right_floats(BlockFormat id, std::uint32_t rank, const MatrixShape& shape,
                         const Block& block) {
  return id == BlockFormat::powersgd && block.first == 0 ? rank * shape.cols : 0;
}

/// How many floats of R and L are in a block.
std::size_t floats_of(BlockFormat id, std::uint32_t rank, const MatrixShape& shape,
                      const Block& block) {
  return right_floats(id, rank, shape, block) + rows_of(block, shape).count * rank;
}

/// Reads the floats of a block into `out`. The bytes begin with this id and rank; all else need not
/// be trusted.
Result<void> read_block_floats(Bytes bytes, BlockFormat id, std::uint32_t rank,
                               const MatrixShape& shape, const Block& block,
                               std::vector<float>& out, DecodeScratch& scratch) {
  const std::size_t head = head_bytes_of(id, block);
  const std::size_t floats = floats_of(id, rank, shape, block);
  // Checked before the allocation: each float takes 3 bytes, its sign and mantissa, uncoded.
  if (bytes.size() < head || bytes.size() - head <= 3 * floats)
    return bad_block("the factors are cut off");
  out.resize(floats);
  FL_CHECK(decode_lossless_block(bytes.subspan(head), out, scratch));
  return all_finite(out) ? success() : bad_block("the factors are not finite");
}

}  // namespace

std::optional<MatrixShape> matrix_of(const Layout::Tensor& tensor, std::uint32_t rank,
                                     double min_ratio) {
  if (tensor.shape.size() < 2 || tensor.elements == 0) return std::nullopt;
  const auto rows = static_cast<std::uint64_t>(tensor.shape[0]);
  const MatrixShape shape = {.rows = rows, .cols = tensor.elements / rows};
  const double sent = static_cast<double>(shape.rows + shape.cols) * rank;
  if (sent * min_ratio > static_cast<double>(tensor.elements)) return std::nullopt;
  if (sent > factor_elements_max) return std::nullopt;
  return shape;
}

void orthonormalize(std::span<float> vectors, std::size_t n) {
  std::vector<double> work(vectors.begin(), vectors.end());
  const std::size_t count = vectors.size() / n;
  std::vector<double> before(count);
  for (std::size_t k = 0; k < count; ++k) {
    before[k] = dot_of(work.data() + k * n, work.data() + k * n, n);
  }
  for (std::size_t k = 0; k < count; ++k) {
    double* const v = work.data() + k * n;
    const double square = dot_of(v, v, n);
    const bool is_new = square > before[k] * dependent * dependent;
    const double factor = is_new ? 1 / std::sqrt(square) : 0.0;
    for (std::size_t i = 0; i < n; ++i) v[i] *= factor;
    for (double* rest = v + n; rest != work.data() + work.size(); rest += n) {
      const double share = dot_of(v, rest, n);
      for (std::size_t i = 0; i < n; ++i) rest[i] -= share * v[i];
    }
  }
  std::ranges::transform(work, vectors.begin(), [](double v) { return static_cast<float>(v); });
}

std::uint64_t shared_key(std::uint64_t shared_seed, std::uint32_t tensor) {
  return block_key(shared_seed, KeyFamily::quantizer,
                   {.tensor = tensor, .elements = 0, .first = 0, .flat = 0});
}

std::vector<float> drawn_right(std::uint64_t key, std::uint32_t rank, std::uint64_t cols,
                               std::span<const float> start) {
  std::vector<float> values(rank * cols);
  kernels().gaussian(key, 0, 0, values.data(), values.size());
  auto to = values.begin();
  for (std::size_t at = 0; at + cols <= start.size() && to != values.end(); at += cols) {
    const auto row = start.subspan(at, cols);
    // A row of zeros would stay zero in all later rounds.
    if (std::ranges::all_of(row, [](float v) { return v == 0; })) continue;
    to = std::ranges::copy(row, to).out;
  }
  orthonormalize(values, cols);
  return values;
}

std::size_t low_rank_bytes_max(BlockFormat id, std::uint32_t rank, const MatrixShape& shape,
                               const Block& block) {
  return head_bytes_of(id, block) +
         dense_compressor().block_bytes_max(floats_of(id, rank, shape, block));
}

Result<void> write_low_rank(const LowRankFactors& factors, const Layout& layout, const Block& block,
                            EncodeScratch& scratch, std::vector<std::byte>& out) {
  const MatrixShape& shape = factors.shape;
  const RightFactor& right = factors.right;
  const RowRange rows = rows_of(block, shape);
  std::vector<float> floats;
  if (right_floats(right.id, right.rank, shape, block) > 0) floats = right.values;
  for (std::size_t k = 0; k < right.rank; ++k) {
    const auto column = std::span(factors.left).subspan(k * shape.rows + rows.first, rows.count);
    floats.insert(floats.end(), column.begin(), column.end());
  }
  std::vector<std::byte> coded;
  const Scan scan = kernels().scan(floats.data(), floats.size());
  FL_CHECK(dense_compressor().encode(floats, scan, layout, block, 0, {}, scratch, coded));
  out.resize(head_bytes_of(right.id, block));
  out[0] = static_cast<std::byte>(right.id);
  out[1] = static_cast<std::byte>(right.rank);
  if (out.size() > rank_head_bytes) store(out, rank_head_bytes, right.key);
  out.insert(out.end(), coded.begin(), coded.end());
  return {};
}

bool has_factors(Bytes first_block, const FactorForm& form, std::uint64_t shared_key) {
  const bool has_key = form.id == BlockFormat::gradzip;
  if (first_block.size() < rank_head_bytes + (has_key ? sizeof(std::uint64_t) : 0)) return false;
  return format_of(first_block) == form.id &&
         std::to_integer<std::uint32_t>(first_block[1]) == form.rank &&
         (!has_key || form.has_own_right ||
          load<std::uint64_t>(first_block, rank_head_bytes) == shared_key);
}

Result<RightFactor> read_right_factor(Bytes bytes, const Layout::Tensor& tensor,
                                      const Block& first_block, DecodeScratch& scratch) {
  if (!is_low_rank(bytes)) return bad_block("the tensor's first block is not of low rank");
  if (bytes.size() < rank_head_bytes) return bad_block("the rank is cut off");
  RightFactor right = {.id = static_cast<BlockFormat>(bytes[0]),
                       .rank = std::to_integer<std::uint32_t>(bytes[1]),
                       .values = {},
                       .drawn = {}};
  if (right.rank < 1 || right.rank > rank_max) {
    return bad_block(fmt::format("rank {}, allowed are 1 to {}", right.rank, rank_max));
  }
  // A minimum ratio of 1: the factors must not have more elements than the tensor.
  const auto shape = matrix_of(tensor, right.rank, 1);
  if (!shape) return bad_block(fmt::format("rank {} is too much for the tensor", right.rank));
  if (right.id == BlockFormat::gradzip) {
    if (bytes.size() < head_bytes_of(right.id, first_block)) return bad_block("the key is cut off");
    right.key = load<std::uint64_t>(bytes, rank_head_bytes);
    return right;
  }
  FL_CHECK(
      read_block_floats(bytes, right.id, right.rank, *shape, first_block, right.values, scratch));
  right.values.resize(right.rank * shape->cols);
  return right;
}

std::span<const float> draw_right(RightFactor& right, const Layout::Tensor& tensor,
                                  DrawnRights& rights) {
  if (right.id != BlockFormat::gradzip) return right.values;
  if (!right.drawn)
    right.drawn = rights.get(right.key, right.rank, matrix_of(tensor, right.rank, 1)->cols);
  return *right.drawn;
}

Result<FactorRows> read_rows(Bytes bytes, const Layout::Tensor& tensor, const Block& block,
                             const RightFactor& right, std::vector<float>& room,
                             DecodeScratch& scratch) {
  if (bytes.size() < rank_head_bytes || static_cast<BlockFormat>(bytes[0]) != right.id ||
      std::to_integer<std::uint32_t>(bytes[1]) != right.rank) {
    return bad_block("the block's format or rank differs from that of the tensor's first block");
  }
  const auto shape = matrix_of(tensor, right.rank, 1);
  FL_ASSERT(shape.has_value());
  FL_CHECK(read_block_floats(bytes, right.id, right.rank, *shape, block, room, scratch));
  const RowRange rows = rows_of(block, *shape);
  const std::size_t before = right_floats(right.id, right.rank, *shape, block);
  return FactorRows{.rank = right.rank,
                    .first = rows.first,
                    .count = rows.count,
                    .values = std::span<const float>(room).subspan(before)};
}

void add_product(const FactorRows& left, std::span<const float> right, std::uint64_t cols,
                 std::uint64_t first, std::span<float> out) {
  std::uint64_t col = first % cols;
  std::size_t at = 0;
  for (std::uint64_t row = 0; at < out.size(); ++row) {
    const std::size_t count = std::min<std::uint64_t>(cols - col, out.size() - at);
    for (std::size_t k = 0; k < left.rank; ++k) {
      kernels().add_scaled(out.data() + at, right.data() + k * cols + col, count,
                           left.values[k * left.count + row]);
    }
    at += count;
    col = 0;
  }
}

Result<void> decode_low_rank(Bytes bytes, const Layout::Tensor& tensor, const Block& block,
                             RightFactor& right, DrawnRights& rights, std::span<float> out,
                             DecodeScratch& scratch) {
  std::vector<float> room;
  FL_TRY(const FactorRows left, read_rows(bytes, tensor, block, right, room, scratch));
  const std::span<const float> values = draw_right(right, tensor, rights);
  std::ranges::fill(out, 0.0f);
  add_product(left, values, matrix_of(tensor, right.rank, 1)->cols, block.first, out);
  return {};
}

}  // namespace fl::codec
