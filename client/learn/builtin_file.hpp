// SPDX-License-Identifier: Apache-2.0
// A built-in model in a safetensors file: one that `fl-server export` has written, or a checkpoint.
// Such a file says which model it holds, in the entry "model" of its metadata. Any thread.
#pragma once

#include "shared/base/error.hpp"
#include "shared/base/io/file.hpp"
#include "shared/params/layout.hpp"
#include "shared/params/model_spec.hpp"

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fl {

struct BuiltinModel {
  std::string model;  // The text of `spec`.
  ModelSpec spec;
  Layout layout = {};
  std::vector<float> weights = {};  // All are finite.

  /// The values of a tensor; none if the model has no such tensor.
  [[nodiscard]] std::span<const float> tensor(std::string_view name) const;
};

/// Reads the model's tensors. Other tensors of the file must be vectors that a method keeps beside
/// them (control.TENSOR). `given`: the model that the user names, for a file that names none; "" to
/// take what the file says. Errors name the file. invalid_input: no model or two different ones are
/// named, or the tensors are not that model's; not_found, corrupt, io.
[[nodiscard]] Result<BuiltinModel> read_builtin_model(Files& files,
                                                      const std::filesystem::path& path,
                                                      std::string_view given = "");

}  // namespace fl
