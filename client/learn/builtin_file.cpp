// SPDX-License-Identifier: Apache-2.0
#include "client/learn/builtin_file.hpp"

#include "kernels/kernels.hpp"
#include "shared/algorithm/strategy.hpp"
#include "shared/base/printable.hpp"
#include "shared/params/model_table.hpp"
#include "shared/params/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace fl {

namespace {

constexpr std::size_t shown_bytes_max = 200;

Result<std::string> name_of_model(const Metadata& metadata, std::string_view given) {
  const auto entry = std::ranges::find(metadata, "model", &Metadata::value_type::first);
  const std::string said = entry == metadata.end() ? "" : entry->second;
  const bool is_custom = said.starts_with(custom_prefix);
  const std::string shown = printable(said, shown_bytes_max);
  if (!given.empty()) {
    if (said.empty() || is_custom || said == given) return std::string(given);
    return Error(Errc::invalid_input,
                 fmt::format("it holds the model \"{}\", and --spec says \"{}\": leave out --spec",
                             shown, given));
  }
  if (said.empty()) {
    return Error(Errc::invalid_input,
                 fmt::format("it does not say which model it holds: add --spec SPEC, as --model of "
                             "fl-server had it; the built-in models are: {}",
                             builtin_model_names()));
  }
  if (is_custom) {
    return Error(Errc::invalid_input,
                 fmt::format("it holds \"{}\", a model of a program of yours, which only that "
                             "program knows; tributary_fl.load(FILE, module) reads it in Python",
                             shown));
  }
  return said;
}

Result<BuiltinModel> read_model(File& file, std::string_view given) {
  FL_TRY(const SafetensorsInfo info, read_safetensors_header(file));
  BuiltinModel model;
  FL_TRY(model.model, name_of_model(info.metadata, given));
  FL_TRY(model.spec, parse_model(model.model));
  FL_TRY(model.layout, builtin_layout(model.model));
  std::set<std::string_view> names;
  for (const Layout::Tensor& tensor : model.layout.tensors()) names.insert(tensor.name);
  const auto may_be_left = [&names](const std::string& name) {
    return names.contains(parameter_of_shared(name));
  };
  // Before memory is taken: the file is as large as its header says, the model may be larger.
  if (const auto fits = check_tensors(info, model.layout, may_be_left); !fits) {
    return Error(
        Errc::invalid_input,
        fmt::format("it does not hold the model \"{}\": {}. Take a file that fl-server export has "
                    "written, or name the model that the file does hold: --spec SPEC. Tensors that "
                    "a run keeps personal are at its clients only",
                    printable(model.model, shown_bytes_max), fits.error().message()));
  }
  model.weights.resize(model.layout.elements());
  FL_CHECK(read_safetensors(file, model.layout, model.weights, may_be_left));
  const std::size_t bad = kernels().scan(model.weights.data(), model.weights.size()).first_bad;
  if (bad == model.weights.size()) return model;
  return Error(Errc::invalid_input, fmt::format("{} is {}: export the model of an earlier round",
                                                model.layout.describe(bad), model.weights[bad]));
}

}  // namespace

std::span<const float> BuiltinModel::tensor(std::string_view name) const {
  const auto found = std::ranges::find(layout.tensors(), name, &Layout::Tensor::name);
  if (found == layout.tensors().end()) return {};
  return std::span(weights).subspan(found->offset, found->elements);
}

Result<BuiltinModel> read_builtin_model(Files& files, const std::filesystem::path& path,
                                        std::string_view given) {
  FL_TRY(const auto file, files.open(path, OpenMode::read));
  auto model = read_model(*file, given);
  if (!model) return model.error().at(path.string());
  return model;
}

}  // namespace fl
