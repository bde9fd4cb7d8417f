// SPDX-License-Identifier: Apache-2.0
#include "client/gpu_doctor.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <system_error>

namespace fl::client {

using Verdict = DoctorLine::Verdict;

namespace {

constexpr const char* library_name = "libcuda.so.1";
constexpr int no_device = 100;  // CUDA_ERROR_NO_DEVICE.

// As the header of the driver declares them.
using Init = int (*)(unsigned flags);
using Count = int (*)(int* count);
using Name = int (*)(char* name, int bytes, int device);
using ErrorName = int (*)(int error, const char** name);

template <class Function>
Function find(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

}  // namespace

GpuDriver ask_gpu_driver() {
  GpuDriver found;
  // Never closed: the driver starts threads.
  void* const library = ::dlopen(library_name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::error_code none;
    if (std::filesystem::exists("/dev/nvidia0", none))
      found.trouble =
          fmt::format("there is an NVIDIA device, and no driver library: {}", ::dlerror());
    return found;
  }
  const auto init = find<Init>(library, "cuInit");
  const auto count_of = find<Count>(library, "cuDeviceGetCount");
  const auto name_of = find<Name>(library, "cuDeviceGetName");
  const auto error_name = find<ErrorName>(library, "cuGetErrorName");
  if (init == nullptr || count_of == nullptr || name_of == nullptr || error_name == nullptr) {
    found.trouble = fmt::format("{} lacks functions that every driver has", library_name);
    return found;
  }
  int count = 0;
  int error = init(0);
  if (error == 0) error = count_of(&count);
  if (error == no_device) return found;
  if (error != 0) {
    const char* name = nullptr;
    const bool is_named = error_name(error, &name) == 0 && name != nullptr;
    found.trouble = fmt::format("NVIDIA's driver does not start: {}",
                                is_named ? std::string(name) : fmt::format("error {}", error));
    return found;
  }
  for (int device = 0; device < count; ++device) {
    std::array<char, 256> name{};
    const bool is_named = name_of(name.data(), static_cast<int>(name.size()) - 1, device) == 0;
    found.names.emplace_back(is_named ? name.data() : "a device without a name");
  }
  return found;
}

DoctorLine gpu_line(const std::string& device, const GpuDriver& driver,
                    const Result<TorchDevices>& torch) {
  const std::string names = fmt::format("{}", fmt::join(driver.names, ", "));
  if (device == "cpu")
    return {Verdict::ok, "GPU",
            names.empty() ? "none is wanted" : "not used, by --device: " + names};
  const bool is_wanted = device != "auto";
  const auto missing = [&](std::string why, std::string advice) -> DoctorLine {
    if (is_wanted)
      return {Verdict::fail, "GPU", fmt::format("{}, and --device is {}", why, device), advice};
    return {Verdict::warn, "GPU", why + ": the CPU trains", advice};
  };
  if (!torch) return missing(torch.error().message(), "without libtorch use --trainer");
  if (torch->count > 0) {
    const auto number = gpu_number(device);
    const std::string text = fmt::format("libtorch {} can use {}{}", torch->version, torch->count,
                                         names.empty() ? "" : ": " + names);
    if (number && *number >= torch->count)
      return missing(text, fmt::format("the last one is cuda:{}", torch->count - 1));
    return {Verdict::ok, "GPU", text};
  }
  if (!driver.trouble.empty())
    return missing(driver.trouble, "mend the driver; nvidia-smi shows when it works");
  if (driver.names.empty()) {
    if (!is_wanted) return {Verdict::ok, "GPU", "none: the CPU trains"};
    return missing("NVIDIA's driver has no device", "install the driver, or use --device cpu");
  }
  if (!torch->has_cuda)
    return missing(fmt::format("libtorch {} has no CUDA half for {}", torch->version, names),
                   "build with FL_TORCH_CUDA=1, or use --device cpu");
  return missing(fmt::format("libtorch {} can't use {}", torch->version, names),
                 "the driver may be too old for it; look at CUDA_VISIBLE_DEVICES, too");
}

}  // namespace fl::client
