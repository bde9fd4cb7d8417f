# SPDX-License-Identifier: Apache-2.0
# Sourced by ./dev: a build for GPUs in build-cuda/, with a libtorch of its own, and the tests that
# use a GPU. Where there is none they say that they did not test it.
# shellcheck shell=bash

cuda_tests=(cuda_kernels_test torch_trainer_test site_ranks_test site_processes_test)

cuda() {
  command -v nvcc > /dev/null || die "there is no nvcc on PATH: install NVIDIA's CUDA toolkit, 13 or later"
  need_machine
  deploy/install-deps.sh
  FL_TORCH_CUDA=1 deploy/fetch-libtorch.sh build-cuda/libtorch
  FL_LIBTORCH=$PWD/build-cuda/libtorch build_preset cuda build-cuda programs "${cuda_tests[@]}"
  run_tests cuda build-cuda -R "^($(tr ' ' '|' <<< "${cuda_tests[*]}")|cuda_sass.*|.*_gpu)\$" "$@"
  summary
}
