#include "shared/codec/blocks/low_rank_block.hpp"

#include "kernels/kernels.hpp"
#include "shared/codec/core/block_key.hpp"
#include "shared/codec/device/device_coder.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fl {

namespace {

constexpr std::size_t rank_head_bytes = 1 + 1;  // Compressor id and K.

// Below this share of its length, what is left of a vector is the rounding of the others.
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

/// Before the floats.
std::size_t head_bytes_of(BlockFormat id, const Block& block) {
  const bool has_key = id == BlockFormat::gradzip && block.first == 0;
  return rank_head_bytes + (has_key ? sizeof(std::uint64_t) : 0);
}

/// The floats of R that lie in a block.
std::size_t right_floats(BlockFormat id, std::uint32_t rank, const MatrixShape& shape,
                         const Block& block) {
  return id == BlockFormat::powersgd && block.first == 0 ? rank * shape.cols : 0;
}

std::size_t floats_of(BlockFormat id, std::uint32_t rank, const MatrixShape& shape,
                      const Block& block) {
  return right_floats(id, rank, shape, block) + rows_of(block, shape).count * rank;
}

/// At most, of a block of a matrix with factors.
std::size_t low_rank_bytes(BlockFormat id, std::uint32_t rank, const MatrixShape& shape,
                           const Block& block) {
  return head_bytes_of(id, block) +
         dense_compressor().block_bytes_max(floats_of(id, rank, shape, block));
}

Result<void> write_block(const LowRankFactors& factors, const Layout& layout, const Block& block,
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

/// Of a block's bytes, which need not be trusted but begin with this id and rank.
Result<void> read_block_floats(Bytes bytes, BlockFormat id, std::uint32_t rank,
                               const MatrixShape& shape, const Block& block,
                               std::vector<float>& out, DecodeScratch& scratch) {
  const std::size_t head = head_bytes_of(id, block);
  const std::size_t floats = floats_of(id, rank, shape, block);
  // Nothing is allocated that is not there: of a float at least the sign and the mantissa are.
  if (bytes.size() < head || bytes.size() - head <= 3 * floats)
    return bad_block("the factors are cut off");
  out.resize(floats);
  FL_CHECK(decode_lossless_block(bytes.subspan(head), out, scratch));
  return all_finite(out) ? success() : bad_block("the factors are not finite");
}

bool decodes_finite(const LowRankFactors& factors) {
  const auto& right = factors.right.values;
  const Scan in_left = kernels().scan(factors.left.data(), factors.left.size());
  const Scan in_right = kernels().scan(right.data(), right.size());
  if (in_left.first_bad != factors.left.size() || in_right.first_bad != right.size()) return false;
  return static_cast<double>(in_left.max_abs) * in_right.max_abs * factors.right.rank < 0x1p127;
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
    // Zeros would stay zeros for ever.
    if (std::ranges::all_of(row, [](float v) { return v == 0; })) continue;
    to = std::ranges::copy(row, to).out;
  }
  orthonormalize(values, cols);
  return values;
}

void MatrixProducts::multiply(LowRankFactors& factors) const {
  const auto& right = factors.right.values;
  if (device_ != nullptr && device_->multiply(matrix_, factors.sizes(), right, factors.left))
    return;
  fl::multiply(matrix_.data(), factors.sizes(), right.data(), factors.left.data());
}

void MatrixProducts::multiply_transposed(LowRankFactors& factors) const {
  auto& right = factors.right.values;
  if (device_ != nullptr &&
      device_->multiply_transposed(matrix_, factors.sizes(), factors.left, right))
    return;
  fl::multiply_transposed(matrix_.data(), factors.sizes(), factors.left.data(), right.data());
}

LowRankMethod::LowRankMethod(BlockFormat id, std::string_view name, const LowRankSettings& settings)
    : id_(id), name_(name), settings_(settings) {
  FL_ASSERT(settings.rank >= 1 && settings.rank <= rank_max && settings.min_ratio >= 1);
}

std::string LowRankMethod::spec() const {
  std::string text = fmt::format("{}:{}", name_, settings_.rank);
  if (settings_.min_ratio != LowRankSettings{}.min_ratio) {
    text += fmt::format(",min_ratio={}", settings_.min_ratio);
  }
  if (settings_.has_own_right) text += ",projection=own";
  return text;
}

std::size_t LowRankMethod::block_bytes_max(std::size_t elements) const {
  return dense_compressor().block_bytes_max(elements);
}

std::size_t LowRankMethod::bytes_max_of(const Layout::Tensor& tensor, const Block& block) const {
  const auto shape = matrix_of(tensor, rank(), settings_.min_ratio);
  return shape ? low_rank_bytes(id_, rank(), *shape, block)
               : Compressor::bytes_max_of(tensor, block);
}

CompressorPlan LowRankMethod::plan(const VectorToPlan& vector) const {
  auto plan = std::make_shared<LowRankPlan>();
  for (const std::uint32_t t : vector.tensors) {
    const Layout::Tensor& tensor = vector.layout->tensors()[t];
    const auto shape = matrix_of(tensor, rank(), settings_.min_ratio);
    const auto matrix = vector.values_of(t);
    // What is not finite will be refused by its name, when its block's turn comes. A device's
    // products tell it without a look at the matrix here.
    if (!shape || (vector.device == nullptr && !all_finite(matrix))) continue;
    const std::uint64_t key =
        shared_key(settings_.has_own_right ? vector.seeds.own : vector.seeds.shared, t);
    const std::string place = fmt::format("{}/{}", name_, tensor.name);
    const bool is_kept = vector.state != nullptr && starts_warm();
    const auto start = is_kept ? vector.state->find(place) : std::span<const float>();
    LowRankFactors factors = {.shape = *shape,
                              .right = {.id = id_,
                                        .rank = rank(),
                                        .key = key,
                                        .values = drawn_right(key, rank(), shape->cols, start)},
                              .left = std::vector<float>(rank() * shape->rows)};
    const auto drawn = factors.right.values;
    factorize(MatrixProducts(matrix, vector.device), factors);
    factors.is_in_range = decodes_finite(factors);
    if (vector.device != nullptr && !factors.is_in_range) {
      if (!all_finite(matrix)) continue;
      factors.right.values = drawn;  // Rather than refuse the matrix because of a device.
      factorize(MatrixProducts(matrix, nullptr), factors);
      factors.is_in_range = decodes_finite(factors);
    }
    if (is_kept && factors.is_in_range) vector.state->set(place, factors.right.values);
    plan->tensors.emplace(t, std::move(factors));
  }
  return {.low_rank = std::move(plan)};
}

Result<void> LowRankMethod::encode(std::span<const float> x, const Scan& scan, const Layout& layout,
                                   const Block& block, std::uint64_t seed,
                                   const CompressorPlan& plan, EncodeScratch& scratch,
                                   std::vector<std::byte>& out) const {
  const auto found = plan.low_rank->tensors.find(block.tensor);
  if (found == plan.low_rank->tensors.end()) {
    return dense_compressor().encode(x, scan, layout, block, seed, {}, scratch, out);
  }
  if (!found->second.is_in_range) {
    return Error(Errc::invalid_input, fmt::format("the matrix of {} has values too large for {}",
                                                  layout.describe(block.flat), spec()));
  }
  return write_block(found->second, layout, block, scratch, out);
}

Result<bool> LowRankMethod::encode_large(std::span<const float> x, const Scan& scan,
                                         const Layout& layout, const Block& block,
                                         std::uint64_t seed, const CompressorPlan& plan,
                                         EncodeScratch& scratch,
                                         std::vector<std::byte>& out) const {
  if (!plan.low_rank->tensors.contains(block.tensor)) return false;
  FL_CHECK(encode(x, scan, layout, block, seed, plan, scratch, out));
  return true;
}

bool is_low_rank(Bytes block) {
  if (block.empty()) return false;
  const auto id = static_cast<BlockFormat>(block[0]);
  return id == BlockFormat::powersgd || id == BlockFormat::gradzip;
}

Result<RightFactor> read_right_factor(Bytes bytes, const Layout::Tensor& tensor,
                                      const Block& first_block, DecodeScratch& scratch) {
  if (!is_low_rank(bytes)) return bad_block("the tensor's first block is not of low rank");
  if (bytes.size() < rank_head_bytes) return bad_block("the rank is cut off");
  RightFactor right = {.id = static_cast<BlockFormat>(bytes[0]),
                       .rank = std::to_integer<std::uint32_t>(bytes[1]),
                       .values = {}};
  if (right.rank < 1 || right.rank > rank_max) {
    return bad_block(fmt::format("rank {}, allowed are 1 to {}", right.rank, rank_max));
  }
  // With this the factors have no more elements than the tensor.
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

void draw_right(RightFactor& right, const Layout::Tensor& tensor) {
  if (right.id != BlockFormat::gradzip || !right.values.empty()) return;
  right.values = drawn_right(right.key, right.rank, matrix_of(tensor, right.rank, 1)->cols);
}

Result<FactorRows> read_rows(Bytes bytes, const Layout::Tensor& tensor, const Block& block,
                             const RightFactor& right, std::vector<float>& room,
                             DecodeScratch& scratch) {
  if (bytes.size() < rank_head_bytes || static_cast<BlockFormat>(bytes[0]) != right.id ||
      std::to_integer<std::uint32_t>(bytes[1]) != right.rank) {
    return bad_block("the block has not the method and rank of its tensor's first");
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
                             RightFactor& right, std::span<float> out, DecodeScratch& scratch) {
  std::vector<float> room;
  FL_TRY(const FactorRows left, read_rows(bytes, tensor, block, right, room, scratch));
  draw_right(right, tensor);
  std::ranges::fill(out, 0.0f);
  add_product(left, right.values, matrix_of(tensor, right.rank, 1)->cols, block.first, out);
  return {};
}

CompressorResult parse_low_rank(SpecParts parts, bool has_projection,
                                std::unique_ptr<const Compressor> (*make)(const LowRankSettings&)) {
  FL_CHECK(
      check_has_argument(parts, fmt::format("{0} wants its rank here, such as {0}:2", parts.name)));
  const auto [rank, start] = cut(*parts.argument, '@');
  parts.argument = rank;
  bool is_dense = false;
  if (start) {
    FL_TRY(const std::int32_t first,
           parse_number(parts.whole, *start, "the round to start at", 1, rounds_max));
    is_dense = parts.round < static_cast<std::uint32_t>(first);
    parts.round = is_dense ? 1 : parts.round - static_cast<std::uint32_t>(first) + 1;
  }
  LowRankSettings settings{};
  FL_TRY(settings.rank,
         parse_whole_argument(parts, fmt::format("the rank of {}", parts.name), 1, rank_max));
  for (const auto& [key, value] : parts.settings) {
    if (key == "projection" && has_projection) {
      if (value != "own" && value != "shared")
        return wrong(parts.whole, value, "projection is own or shared");
      settings.has_own_right = value == "own";
      continue;
    }
    if (key != "min_ratio") {
      return wrong(parts.whole, key,
                   fmt::format("{} has the setting{}", parts.name,
                               has_projection ? "s min_ratio and projection" : " min_ratio"));
    }
    FL_TRY(settings.min_ratio,
           parse_real<double>(parts.whole, value, "min_ratio must be a number from 1 to 1000000",
                              [](double r) { return r >= 1 && r <= 1e6; }));
  }
  settings.has_feedback = parts.error_feedback;
  if (is_dense) return make_fp32();
  return make(settings);
}

}  // namespace fl
