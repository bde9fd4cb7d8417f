// SPDX-License-Identifier: Apache-2.0
#include "shared/params/layout.hpp"

#include "shared/base/limits.hpp"
#include "shared/base/printable.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace fl {

namespace {

Result<void> check_name(const std::string& name, std::size_t index) {
  if (name.empty()) {
    return Error(Errc::invalid_input, fmt::format("tensor {} has an empty name", index));
  }
  if (name.size() > limits::tensor_name_bytes_max) {
    return Error(Errc::too_large, fmt::format("the name of tensor {} has {} bytes; the limit is {}",
                                              index, name.size(), limits::tensor_name_bytes_max));
  }
  // Names appear in logs, in JSON and in SQL views, so only printable ASCII is allowed.
  if (!std::ranges::all_of(name, [](char c) { return c > ' ' && c <= '~'; })) {
    return Error(
        Errc::invalid_input,
        fmt::format("the name of tensor {} has a character that is not printable ASCII", index));
  }
  if (name == "__metadata__") {
    return Error(Errc::invalid_input, "a tensor is named __metadata__, which safetensors reserves");
  }
  return {};
}

Result<std::uint64_t> count_elements(const TensorSpec& spec) {
  if (spec.shape.size() > limits::dimensions_max) {
    return Error(Errc::too_large,
                 fmt::format("tensor {} has {} dimensions; the limit is {}", spec.name,
                             spec.shape.size(), limits::dimensions_max));
  }
  std::uint64_t elements = 1;
  for (const std::int64_t size : spec.shape) {
    if (size < 0) {
      return Error(Errc::invalid_input,
                   fmt::format("tensor {} has a dimension of size {}", spec.name, size));
    }
    if (__builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements) ||
        elements > limits::parameters_max) {
      return Error(Errc::too_large, fmt::format("tensor {} has more elements than the limit of {}",
                                                spec.name, limits::parameters_max));
    }
  }
  return elements;
}

// The lengths come first, so that two different layouts never hash the same bytes.
void hash(Hasher& hasher, const TensorSpec& spec) {
  const std::uint64_t sizes[2] = {spec.name.size(), spec.shape.size()};
  hasher.update(std::as_bytes(std::span(sizes)));
  hasher.update(bytes_of(std::string_view(spec.name)));
  hasher.update(std::as_bytes(std::span(spec.shape)));
}

}  // namespace

bool is_statistic(std::string_view tensor) {
  const std::string_view last = tensor.substr(tensor.rfind('.') + 1);
  return last == "running_mean" || last == "running_var";
}

Result<Layout> Layout::make(const std::vector<TensorSpec>& specs) {
  if (specs.size() > limits::tensors_max) {
    return Error(Errc::too_large, fmt::format("the model has {} tensors; the limit is {}",
                                              specs.size(), limits::tensors_max));
  }
  Layout layout;
  Hasher hasher;
  std::unordered_set<std::string_view> names(specs.size());
  layout.tensors_.reserve(specs.size());
  for (const TensorSpec& spec : specs) {
    FL_CHECK(check_name(spec.name, layout.tensors_.size()));
    if (!names.insert(spec.name).second) {
      return Error(Errc::invalid_input, fmt::format("two tensors are named {}", spec.name));
    }
    FL_TRY(const std::uint64_t elements, count_elements(spec));
    layout.tensors_.push_back({spec.name, spec.shape, layout.elements_, elements});
    if (is_statistic(spec.name)) {
      Stretch& all = layout.statistics_;
      if (all.end == 0) all.begin = layout.elements_;
      all.end = layout.elements_ + elements;
    }
    layout.elements_ += elements;
    if (layout.elements_ > limits::parameters_max) {
      return Error(Errc::too_large,
                   fmt::format("the tensors up to {} have more parameters than the limit of {}",
                               spec.name, limits::parameters_max));
    }
    hash(hasher, spec);
  }
  layout.digest_ = hasher.digest();
  return layout;
}

std::string describe_differences(const Layout& run, std::span<const TensorSpec> told,
                                 bool is_whole) {
  constexpr std::size_t shown_max = 3;
  constexpr std::size_t shown_bytes_max = 80;
  std::vector<std::string> found;
  std::unordered_map<std::string_view, const TensorSpec*> by_name;
  for (const TensorSpec& tensor : told) by_name.emplace(tensor.name, &tensor);
  for (const Layout::Tensor& tensor : run.tensors()) {
    const auto client = by_name.find(tensor.name);
    if (client == by_name.end()) {
      if (is_whole) found.push_back(fmt::format("the client has no {}", tensor.name));
      continue;
    }
    if (client->second->shape != tensor.shape)
      found.push_back(fmt::format("{} has shape [{}] in the run and [{}] at the client",
                                  tensor.name, fmt::join(tensor.shape, ", "),
                                  fmt::join(client->second->shape, ", ")));
    by_name.erase(client);
  }
  for (const TensorSpec& tensor : told) {
    if (by_name.contains(tensor.name))
      found.push_back(fmt::format("the run has no {}", printable(tensor.name, shown_bytes_max)));
  }
  for (std::size_t i = 0; found.empty() && i < std::min(told.size(), run.tensors().size()); ++i) {
    if (told[i].name != run.tensors()[i].name)
      found.push_back(
          fmt::format("they are in another order: tensor {} is {} in the run and {} at "
                      "the client",
                      i, run.tensors()[i].name, printable(told[i].name, shown_bytes_max)));
  }
  const std::size_t rest = found.size() - std::min(found.size(), shown_max);
  found.resize(found.size() - rest);
  return fmt::format("{}{}", fmt::join(found, "; "),
                     rest > 0 ? fmt::format("; and {} more", rest) : "");
}

std::string Layout::describe(std::uint64_t index) const {
  FL_ASSERT(index < elements_);
  // The last tensor that begins at or before the index. An empty tensor begins where the next does.
  const auto after = std::ranges::upper_bound(tensors_, index, {}, &Tensor::offset);
  const Tensor& tensor = *std::prev(after);
  return fmt::format("{}[{}]", tensor.name, index - tensor.offset);
}

}  // namespace fl
