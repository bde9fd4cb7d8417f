# SPDX-License-Identifier: Apache-2.0
# Sourced by ./dev: one run on a machine that has a GPU and not much else (a torch wheel with CUDA,
# nothing that this build needs, no way to fetch it). What it needs is packed where ./dev cuda ran.
# shellcheck shell=bash

gpu_programs=(fl-server fl-client fl-rank libfl-torch.so libfl-codec.so.0)
gpu_tests=(cuda_kernels_test torch_trainer_test site_processes_test kernels_bench)

gpu() {
  case ${1:-} in
    pack) gpu_pack "${2:-build-cuda}" ;;
    run) gpu_run "${2:-build-cuda/pack}" ;;
    *) die "./dev gpu pack [BUILD], or ./dev gpu run [PACK]" ;;
  esac
}

# gpu_pack BUILD: the programs and tests of a build, stripped, with the libraries of this system that
# they need, in BUILD/pack: 60 MB. Of libtorch and CUDA those of the other machine are taken.
gpu_pack() {
  local build=$1 pack=$1/pack file
  [ -x "$build/bin/fl-client" ] || die "there is no build for GPUs in $build: ./dev cuda"
  ninja -C "$build" "${gpu_tests[@]}"
  rm -rf "$pack"
  mkdir -p "$pack/bin" "$pack/lib"
  for file in "${gpu_programs[@]}" "${gpu_tests[@]}"; do cp -L "$build/bin/$file" "$pack/bin/"; done
  strip --strip-unneeded "$pack"/bin/*
  ldd "$pack"/bin/* | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
    grep -Ev '/lib(torch|c10|cu|nv|nccl|gomp|c\.|m\.|dl\.|pthread\.|rt\.|gcc_s)|/ld-linux' |
    xargs -r cp -L -t "$pack/lib"
  say "packed, $(du -sh "$pack" | cut -f 1): bring $pack and the sources to the other machine, and run there: ./dev gpu run $pack"
}

# gpu_run PACK: what a GPU has to show, the most valuable first; each step has a limit and the next
# one follows whatever it says. Eight minutes at most. The whole output of each step is in $OUT.
gpu_run() {
  local pack torch
  pack=$(cd "$1" && pwd)
  OUT=${OUT:-$pack/results}
  mkdir -p "$OUT"
  torch=$(python3 -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))') ||
    die "this python3 has no torch"
  ln -sfn "$torch" "$pack/libtorch"
  export FL_SOURCE=$PWD FL_BIN=$pack/bin PYTHONUNBUFFERED=1
  LD_LIBRARY_PATH=$pack/lib:$torch/torch/lib:$(find "$torch/nvidia" -maxdepth 2 -name lib -printf '%p:' 2> /dev/null)
  export LD_LIBRARY_PATH
  gpu_failed=0
  gpu_step machine 10 nvidia-smi --query-gpu=name,driver_version,pcie.link.gen.current,memory.total --format=csv
  gpu_step kernels-right 60 "$FL_BIN/cuda_kernels_test"
  gpu_step coding 110 python3 tests/bench/gpu_bench.py --only-gpu
  gpu_step update-right 45 "$FL_BIN/torch_trainer_test" -tc='*on a GPU*'
  gpu_step killed-rank 90 env -C tests/process python3 -m unittest -v site_gpu_test.OnGpu.test_a_killed_rank_is_replaced_and_the_model_is_the_same
  gpu_step kernels 60 bash -c "set -o pipefail; '$FL_BIN/kernels_bench' | grep cuda"
  gpu_step lost-rank 35 "$FL_BIN/site_processes_test" -tc='a rank that is killed*'
  if command -v compute-sanitizer > /dev/null; then
    gpu_step memcheck 70 compute-sanitizer --error-exitcode 1 "$FL_BIN/cuda_kernels_test" -tc='*codec device*'
  fi
  say "$gpu_failed steps failed; their output is in $OUT"
  [ "$gpu_failed" -eq 0 ]
}

# gpu_step NAME SECONDS COMMAND…: shows the end of what it prints.
gpu_step() {
  local name=$1 limit=$2 status=0 began=$SECONDS
  shift 2
  say "$name"
  timeout --kill-after 5 "$limit" "$@" > "$OUT/$name.log" 2>&1 || status=$?
  tail -n 40 "$OUT/$name.log"
  echo "$name: status $status after $((SECONDS - began)) of $limit s"
  [ "$status" -eq 0 ] || gpu_failed=$((gpu_failed + 1))
}
