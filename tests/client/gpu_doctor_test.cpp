// SPDX-License-Identifier: Apache-2.0
// What `fl-client doctor` says about GPUs, for each combination of driver, libtorch and --device.
#include "client/gpu_doctor.hpp"

#include <doctest/doctest.h>

#include <string>

namespace fl::test {

using namespace fl::client;

TEST_CASE("the GPU's line follows from the driver, libtorch and --device") {
  using Verdict = DoctorLine::Verdict;
  const GpuDriver nothing;
  const GpuDriver two{{"A100", "H100"}, ""};
  const GpuDriver broken{{}, "NVIDIA's driver does not start: CUDA_ERROR_UNKNOWN"};
  const TorchDevices of_cpu{"2.11.0", false, 0};
  const TorchDevices with_cuda{"2.11.0", true, 2};
  const TorchDevices blind{"2.11.0", true, 0};
  const Error no_torch(Errc::not_found, "can't load the libtorch trainer");
  struct Row {
    const char* device;
    GpuDriver driver;
    Result<TorchDevices> torch;
    Verdict verdict;
    const char* text;
    const char* advice;
  };
  const Row rows[] = {
      {"auto", nothing, of_cpu, Verdict::ok, "none: the CPU trains", ""},
      {"cuda", nothing, of_cpu, Verdict::fail,
       "NVIDIA's driver has no device, and --device is cuda", "--device cpu"},
      {"auto", two, with_cuda, Verdict::ok, "libtorch 2.11.0 can use 2: A100, H100", ""},
      {"cuda", two, with_cuda, Verdict::ok, "libtorch 2.11.0 can use 2: A100, H100", ""},
      {"cuda:1", two, with_cuda, Verdict::ok, "libtorch 2.11.0 can use 2", ""},
      {"cuda:2", two, with_cuda, Verdict::fail, "and --device is cuda:2", "the last one is cuda:1"},
      {"auto", two, of_cpu, Verdict::warn, "libtorch 2.11.0 has no CUDA half for A100, H100",
       "FL_TORCH_CUDA=1"},
      {"cuda", two, of_cpu, Verdict::fail, "has no CUDA half", "FL_TORCH_CUDA=1"},
      {"auto", two, blind, Verdict::warn, "libtorch 2.11.0 can't use A100, H100", "too old"},
      {"cuda", two, blind, Verdict::fail, "can't use A100, H100, and --device is cuda", "too old"},
      {"auto", broken, blind, Verdict::warn, "CUDA_ERROR_UNKNOWN: the CPU trains", "nvidia-smi"},
      {"cuda", broken, of_cpu, Verdict::fail, "CUDA_ERROR_UNKNOWN", "nvidia-smi"},
      {"auto", nothing, no_torch, Verdict::warn, "can't load the libtorch trainer", "--trainer"},
      {"cuda", two, no_torch, Verdict::fail, "can't load the libtorch trainer", "--trainer"},
      {"cpu", two, of_cpu, Verdict::ok, "not used, by --device: A100, H100", ""},
      {"cpu", broken, no_torch, Verdict::ok, "none is wanted", ""},
  };
  for (const Row& row : rows) {
    const DoctorLine line = gpu_line(row.device, row.driver, row.torch);
    CAPTURE(row.device);
    CAPTURE(line.text);
    CAPTURE(line.advice);
    CHECK(line.subject == "GPU");
    CHECK(line.verdict == row.verdict);
    CHECK(line.text.find(row.text) != std::string::npos);
    CHECK(line.advice.find(row.advice) != std::string::npos);
    CHECK(line.advice.empty() == (line.verdict == Verdict::ok));
  }
}

}  // namespace fl::test
