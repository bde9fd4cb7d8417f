// SPDX-License-Identifier: Apache-2.0
#include "client/learn/torch_library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <system_error>

namespace fl {

namespace {

constexpr const char* library_name = "libfl-torch.so";

Result<const TorchEntry*> load_entry() {
  std::error_code none;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", none);
  const auto beside = program.parent_path() / library_name;
  // Never closed, because libtorch can't be unloaded.
  void* const library = ::dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return Error(Errc::not_found,
                 fmt::format("can't load the built-in models: {}. Debian's packages: install "
                             "tributary-torch. The Python wheel: pip install torch=={}. A build of "
                             "your own: leave {} beside the program, and libtorch where it was. A "
                             "model of your own, by --trainer, needs none of this",
                             ::dlerror(), FL_TORCH_VERSION, library_name));
  }
  const auto* const entry = static_cast<const TorchEntry*>(::dlsym(library, torch_entry_name));
  if (entry == nullptr || std::string_view(entry->version) != torch_library_version) {
    return Error(Errc::not_found,
                 fmt::format("{} comes from another build than this program: expected {}, got {}",
                             beside.string(), torch_library_version,
                             entry == nullptr ? "unknown" : entry->version));
  }
  return entry;
}

const Result<const TorchEntry*>& entry() {
  static const Result<const TorchEntry*> loaded = load_entry();
  return loaded;
}

}  // namespace

Result<std::unique_ptr<Trainer>> load_torch_trainer(const LearnOptions& options, LocalData data) {
  if (!entry()) return entry().error();
  return (*entry())->make_trainer(options, std::move(data));
}

Result<void> load_torch_predictor(const LearnOptions& options, const BuiltinModel& model,
                                  const LocalData& data, const TakeOutputs& take) {
  if (!entry()) return entry().error();
  return (*entry())->predict(options, model, data, take);
}

Result<TorchDevices> load_torch_devices() {
  if (!entry()) return entry().error();
  return (*entry())->find_devices();
}

}  // namespace fl
