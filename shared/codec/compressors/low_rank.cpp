// SPDX-License-Identifier: Apache-2.0
#include "shared/codec/compressors/low_rank.hpp"

#include "kernels/kernels.hpp"
#include "shared/codec/device/device_coder.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fl::codec {

namespace {

/// Whether all values of L R are finite.
bool decodes_finite(const LowRankFactors& factors) {
  const auto& right = factors.right.values;
  const Scan in_left = kernels().scan(factors.left.data(), factors.left.size());
  const Scan in_right = kernels().scan(right.data(), right.size());
  if (in_left.first_bad != factors.left.size() || in_right.first_bad != right.size()) return false;
  return static_cast<double>(in_left.max_abs) * in_right.max_abs * factors.right.rank < 0x1p127;
}

}  // namespace

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

LowRankCompressor::LowRankCompressor(BlockFormat id, std::string_view name,
                                     const LowRankSettings& settings)
    : id_(id), name_(name), settings_(settings) {
  FL_ASSERT(settings.rank >= 1 && settings.rank <= rank_max && settings.min_ratio >= 1);
}

std::string LowRankCompressor::spec() const {
  std::string text = fmt::format("{}:{}", name_, settings_.rank);
  if (settings_.min_ratio != LowRankSettings{}.min_ratio) {
    text += fmt::format(",min_ratio={}", settings_.min_ratio);
  }
  if (settings_.has_own_right) text += ",projection=own";
  return text;
}

std::size_t LowRankCompressor::block_bytes_max(std::size_t elements) const {
  return dense_compressor().block_bytes_max(elements);
}

std::size_t LowRankCompressor::bytes_max_of(const Layout::Tensor& tensor,
                                            const Block& block) const {
  const auto shape = matrix_of(tensor, rank(), settings_.min_ratio);
  return shape ? low_rank_bytes_max(id_, rank(), *shape, block)
               : Compressor::bytes_max_of(tensor, block);
}

std::optional<FactorForm> LowRankCompressor::factor_form(const Layout::Tensor& tensor) const {
  if (!matrix_of(tensor, rank(), settings_.min_ratio)) return std::nullopt;
  return FactorForm{.id = id_, .rank = rank(), .has_own_right = settings_.has_own_right};
}

CompressorPlan LowRankCompressor::plan(const VectorToPlan& vector) const {
  auto plan = std::make_shared<LowRankPlan>();
  for (const std::uint32_t t : vector.tensors) {
    const Layout::Tensor& tensor = vector.layout->tensors()[t];
    const auto shape = matrix_of(tensor, rank(), settings_.min_ratio);
    const auto matrix = vector.values_of(t);
    // A matrix with a value that is not finite gets no factors; the error comes when its block is
    // encoded. With a device the products show such a value, so the matrix is not read here.
    if (!shape || (vector.device == nullptr && !all_finite(matrix))) continue;
    const std::uint64_t key =
        shared_key(settings_.has_own_right ? vector.inputs.own : vector.inputs.shared, t);
    const std::string place = fmt::format("{}/{}", name_, tensor.name);
    const bool is_kept = vector.state != nullptr && starts_warm();
    const auto start = is_kept ? vector.state->find(place) : std::span<const float>();
    LowRankFactors factors = {.shape = *shape,
                              .right = {.id = id_,
                                        .rank = rank(),
                                        .key = key,
                                        .values = drawn_right(key, rank(), shape->cols, start),
                                        .drawn = {}},
                              .left = std::vector<float>(rank() * shape->rows)};
    const auto drawn = factors.right.values;
    factorize(MatrixProducts(matrix, vector.device), factors);
    factors.is_in_range = decodes_finite(factors);
    if (vector.device != nullptr && !factors.is_in_range) {
      if (!all_finite(matrix)) continue;
      factors.right.values = drawn;  // Maybe the device failed: try again on the CPU.
      factorize(MatrixProducts(matrix, nullptr), factors);
      factors.is_in_range = decodes_finite(factors);
    }
    if (is_kept && factors.is_in_range) vector.state->set(place, factors.right.values);
    plan->tensors.emplace(t, std::move(factors));
  }
  return {.low_rank = std::move(plan)};
}

Result<void> LowRankCompressor::encode(std::span<const float> x, const Scan& scan,
                                       const Layout& layout, const Block& block, std::uint64_t seed,
                                       const CompressorPlan& plan, EncodeScratch& scratch,
                                       std::vector<std::byte>& out) const {
  const auto found = plan.low_rank->tensors.find(block.tensor);
  if (found == plan.low_rank->tensors.end()) {
    return dense_compressor().encode(x, scan, layout, block, seed, {}, scratch, out);
  }
  if (!found->second.is_in_range) {
    return Error(Errc::invalid_input,
                 fmt::format("the matrix with {} has values that are too large for {}",
                             layout.describe(block.flat), spec()));
  }
  return write_low_rank(found->second, layout, block, scratch, out);
}

Result<bool> LowRankCompressor::encode_large(std::span<const float> x, const Scan& scan,
                                             const Layout& layout, const Block& block,
                                             std::uint64_t seed, const CompressorPlan& plan,
                                             EncodeScratch& scratch,
                                             std::vector<std::byte>& out) const {
  if (!plan.low_rank->tensors.contains(block.tensor)) return false;
  FL_CHECK(encode(x, scan, layout, block, seed, plan, scratch, out));
  return true;
}

CompressorResult parse_low_rank(SpecParts parts, bool has_projection,
                                std::unique_ptr<const Compressor> (*make)(const LowRankSettings&)) {
  FL_CHECK(
      check_has_argument(parts, fmt::format("{0} needs a rank here, such as {0}:2", parts.name)));
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
        return wrong(parts.whole, value, "projection must be own or shared");
      settings.has_own_right = value == "own";
      continue;
    }
    if (key != "min_ratio") {
      return wrong(parts.whole, key,
                   fmt::format("{} has no such setting; its own {}", parts.name,
                               has_projection ? "are min_ratio and projection" : "is min_ratio"));
    }
    FL_TRY(settings.min_ratio,
           parse_real<double>(parts.whole, value, "min_ratio must be a number from 1 to 1000000",
                              [](double r) { return r >= 1 && r <= 1e6; }));
  }
  settings.has_feedback = parts.error_feedback;
  if (is_dense) return make_fp32();
  return make(settings);
}

}  // namespace fl::codec
