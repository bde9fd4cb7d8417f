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
  // PyTorch and safetensors allow blanks, line breaks and every language. What is shown of a name
  // passes printable() or json_escaped(), as all text from outside does. A zero byte ends a name in
  // the archives that we export.
  if (!is_utf8(name) || name.find('\0') != name.npos) {
    return Error(Errc::invalid_input,
                 fmt::format("the name of tensor {}, '{}', is not valid UTF-8 or has a zero byte",
                             index, printable(name)));
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

/// A client may tell a shape that no tensor can have.
std::string shape_text(std::span<const std::int64_t> shape) {
  if (shape.size() > limits::dimensions_max) return fmt::format("{} dimensions", shape.size());
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// What all of `longer` begin with, if they are the names in `shorter` behind it, as wrappers of
/// PyTorch make them ("_orig_mod.fc.weight"); else "".
std::string_view added_before(std::span<const std::string_view> longer,
                              std::span<const std::string_view> shorter) {
  const std::unordered_set<std::string_view> all(longer.begin(), longer.end());
  const std::unordered_set<std::string_view> names(shorter.begin(), shorter.end());
  // A client may tell a name many times, and each would be tried.
  if (longer.empty() || all.size() != longer.size() || names.size() != longer.size() ||
      shorter.size() != longer.size())
    return "";
  for (const std::string_view name : names) {
    if (!longer[0].ends_with(name)) continue;
    const std::string_view added = longer[0].substr(0, longer[0].size() - name.size());
    const bool fits = added.ends_with('.') && std::ranges::all_of(names, [&](auto other) {
                        return all.contains(std::string(added).append(other));
                      });
    if (fits) return added;
  }
  return "";
}

/// Says so if the names differ only by what a wrapper puts before them; else "".
std::string describe_wrapper(const Layout& run, std::span<const TensorSpec> told,
                             std::size_t shown_bytes_max) {
  std::vector<std::string_view> ours;
  std::vector<std::string_view> theirs;
  for (const Layout::Tensor& tensor : run.tensors()) ours.push_back(tensor.name);
  for (const TensorSpec& tensor : told) theirs.push_back(tensor.name);
  const std::string_view of_run = added_before(ours, theirs);
  const std::string_view added = of_run.empty() ? added_before(theirs, ours) : of_run;
  if (added.empty()) return "";
  return fmt::format(
      "all names of the {} begin with {}, as those of a model in a wrapper such as torch.compile: "
      "use the names of the model itself, as tributary_fl.torch.save writes them",
      of_run.empty() ? "client" : "run", printable(added, shown_bytes_max));
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

Digest digest_in_any_order(const Layout& layout) {
  std::vector<TensorSpec> specs;
  for (const auto& tensor : layout.tensors()) specs.push_back({tensor.name, tensor.shape});
  std::ranges::sort(specs, {}, [](const TensorSpec& spec) {
    return std::pair<bool, std::string_view>(is_statistic(spec.name), spec.name);
  });
  return Layout::make(specs).value().digest();
}

std::string describe_differences(const Layout& run, std::span<const TensorSpec> told,
                                 bool is_whole) {
  constexpr std::size_t shown_max = 3;
  constexpr std::size_t shown_bytes_max = 80;
  if (std::string why = describe_wrapper(run, told, shown_bytes_max); !why.empty()) return why;
  std::vector<std::string> found;  // The first shown_max differences.
  std::size_t rest = 0;
  const auto note = [&](const auto& make_text) {
    if (found.size() < shown_max) {
      found.push_back(make_text());
    } else {
      ++rest;
    }
  };
  std::unordered_map<std::string_view, const TensorSpec*> by_name;
  for (const TensorSpec& tensor : told) by_name.emplace(tensor.name, &tensor);
  for (const Layout::Tensor& tensor : run.tensors()) {
    const auto client = by_name.find(tensor.name);
    if (client == by_name.end()) {
      if (is_whole) note([&] { return fmt::format("the client has no {}", tensor.name); });
      continue;
    }
    if (client->second->shape != tensor.shape)
      note([&] {
        return fmt::format("{} has shape {} in the run and {} at the client", tensor.name,
                           shape_text(tensor.shape), shape_text(client->second->shape));
      });
    by_name.erase(client);
  }
  for (const TensorSpec& tensor : told) {
    if (by_name.contains(tensor.name))
      note([&] {
        return fmt::format("the run has no {}", printable(tensor.name, shown_bytes_max));
      });
  }
  for (std::size_t i = 0; found.empty() && i < std::min(told.size(), run.tensors().size()); ++i) {
    if (told[i].name != run.tensors()[i].name)
      note([&] {
        return fmt::format(
            "they are in another order: tensor {} is {} in the run and {} at the client", i,
            run.tensors()[i].name, printable(told[i].name, shown_bytes_max));
      });
  }
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
