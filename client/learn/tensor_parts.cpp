// SPDX-License-Identifier: Apache-2.0
#include "client/learn/tensor_parts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <span>
#include <string>

namespace fl {

namespace {

constexpr std::int64_t nowhere = -1;

/// How a tensor is cut.
struct Cut {
  std::string_view name;  // In a block, or in the model.
  std::int64_t dimension = nowhere;
  std::int64_t groups = 1;       // Along it lie so many groups, each of which is divided.
  bool sees_own_tokens = false;  // With divided tokens.
};

constexpr Cut cuts[] = {
    {"tokens.weight", 0},
    {.name = "positions.weight", .sees_own_tokens = true},
    {.name = "norm1.weight", .sees_own_tokens = true},
    {.name = "norm1.bias", .sees_own_tokens = true},
    {"attention.weight", 0, 3},  // Queries, keys and values: each rank has some heads of each.
    {"attention.bias", 0, 3},
    {"projection.weight", 1},
    {.name = "projection.bias", .sees_own_tokens = true},  // Added once, to the sum.
    {.name = "norm2.weight", .sees_own_tokens = true},
    {.name = "norm2.bias", .sees_own_tokens = true},
    {"fc1.weight", 0},
    {"fc1.bias", 0},
    {"fc2.weight", 1},
    {.name = "fc2.bias", .sees_own_tokens = true},
    {.name = "experts.router.weight"},
    {"experts.fc1.weight", 1},
    {"experts.fc1.bias", 1},
    {"experts.fc2.weight", 2},
    {.name = "experts.fc2.bias"},
    {.name = "norm.weight", .sees_own_tokens = true},
    {.name = "norm.bias", .sees_own_tokens = true},
};

const Cut& cut_of(std::string_view tensor) {
  if (tensor.starts_with("block")) tensor = tensor.substr(tensor.find('.') + 1);
  const auto* const found = std::ranges::find(cuts, tensor, &Cut::name);
  FL_ASSERT(found != std::end(cuts));  // check_division() lets transformers pass alone.
  return *found;
}

std::int64_t product(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

/// The experts of a tensor that a rank has; all of a tensor that is of no experts. Tensor
/// parallelism divides it after that.
Layout::Tensor own_experts(const Layout::Tensor& tensor, std::int64_t ranks, std::int64_t rank) {
  Layout::Tensor own = tensor;
  if (ranks == 1 || !is_of_experts(tensor.name)) return own;
  own.shape[0] /= ranks;
  own.elements /= static_cast<std::uint64_t>(ranks);
  own.offset += static_cast<std::uint64_t>(rank) * own.elements;
  return own;
}

/// Calls add(begin, count) for the stretches of a tensor that a rank has, in their order.
template <class Add>
void for_each_stretch(const Layout::Tensor& tensor, const Cut& cut, std::int64_t ranks,
                      std::int64_t rank, const Add& add) {
  const auto offset = static_cast<std::int64_t>(tensor.offset);
  if (cut.dimension == nowhere || ranks == 1)
    return add(offset, static_cast<std::int64_t>(tensor.elements));
  const auto along = static_cast<std::size_t>(cut.dimension);
  const std::span<const std::int64_t> shape = tensor.shape;
  const std::int64_t inner = product(shape.subspan(along + 1));
  const std::int64_t count = shape[along] / cut.groups / ranks * inner;
  const std::int64_t groups = product(shape.first(along)) * cut.groups;
  for (std::int64_t group = 0; group < groups; ++group)
    add(offset + (group * ranks + rank) * count, count);
}

}  // namespace

Result<void> check_division(const ModelSpec& spec, std::string_view model,
                            const TensorDivision& division) {
  const std::int64_t ranks = division.ranks;
  if (ranks == 1) return {};
  const auto refuse = [&](const std::string& why) {
    return Error(Errc::invalid_input,
                 fmt::format("--parallel tp={} can't divide model {}: {}", ranks, model, why));
  };
  if (spec.family != ModelSpec::Family::transformer)
    return refuse("only the layers of a transformer are divided; --zero divides any model");
  if (spec.heads % ranks != 0)
    return refuse(fmt::format("its {} heads are no multiple of {}", spec.heads, ranks));
  if (spec.outputs % ranks != 0)
    return refuse(
        fmt::format("its vocabulary of {} is no multiple of {}; it may be larger than "
                    "the data's numbers need",
                    spec.outputs, ranks));
  if (division.divides_tokens && spec.input[0] % ranks != 0)
    return refuse(
        fmt::format("--sequence-parallel divides its context of {} tokens, which is no "
                    "multiple of {}",
                    spec.input[0], ranks));
  return {};
}

bool is_of_experts(std::string_view tensor) {
  return tensor.find("experts.fc") != std::string_view::npos;
}

std::vector<std::int64_t> part_shape(const Layout::Tensor& tensor, const LayersDivision& division) {
  std::vector<std::int64_t> shape = own_experts(tensor, division.experts.ranks, 0).shape;
  if (division.tensors.ranks == 1) return shape;
  const Cut& cut = cut_of(tensor.name);
  if (cut.dimension != nowhere)
    shape[static_cast<std::size_t>(cut.dimension)] /= division.tensors.ranks;
  return shape;
}

LayersPart part_of_model(const Layout& layout, const LayersDivision& division,
                         const LayersPlace& place) {
  const TensorDivision& tensors = division.tensors;
  const std::int64_t blocks = blocks_of(layout);
  LayersPart part;
  for (const Layout::Tensor& tensor : layout.tensors()) {
    if (!is_on_rank(tensor.name, division.stages, place.pipeline, blocks)) continue;
    const Cut& cut = cut_of(tensor.name);
    const bool is_whole = cut.dimension == nowhere || tensors.ranks == 1;
    const bool is_owned = (!is_whole || place.tensor == 0) &&
                          !is_tied_copy(tensor.name, division.stages, place.pipeline);
    const bool is_summed = cut.sees_own_tokens && tensors.divides_tokens && tensors.ranks > 1;
    const Layout::Tensor own = own_experts(tensor, division.experts.ranks, place.expert);
    for_each_stretch(own, cut, tensors.ranks, place.tensor,
                     [&](std::int64_t begin, std::int64_t n) {
                       const Piece piece{begin, n, part.elements};
                       part.pieces.push_back(piece);
                       if (is_owned) part.owned.push_back(piece);
                       if (is_summed) part.summed.push_back(piece);
                       if (is_tied(tensor.name, division.stages)) part.tied.push_back(piece);
                       part.elements += n;
                     });
  }
  return part;
}

}  // namespace fl
