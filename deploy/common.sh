# SPDX-License-Identifier: Apache-2.0
# Functions for ./dev and the scripts in this folder: messages, and checks of the machine.
# shellcheck shell=bash

say() { printf '==> %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# need_machine: checks for Linux on x86_64, because the prebuilt libtorch and the SIMD kernels need it.
need_machine() {
  [ "$(uname -s)" = Linux ] || die "Tributary builds on Linux; this is $(uname -s)"
  [ "$(uname -m)" = x86_64 ] || die "Tributary builds on x86_64; this machine is $(uname -m)"
}

# need_disk FOLDER GIB: checks that the disk of FOLDER has GIB GiB free.
need_disk() {
  local free_kib
  free_kib=$(df -Pk "$1" | awk 'NR == 2 { print $4 }')
  [ "$free_kib" -ge $(($2 << 20)) ] ||
    die "$1 has $((free_kib >> 10)) MiB free and the build needs about $2 GiB: free some, or" \
      "clone to a larger disk"
}

# The memory of this machine, or of the container that this is, in KiB.
memory_kib() {
  local kib limit file
  kib=$(awk '/^MemTotal:/ { print $2 }' /proc/meminfo)
  for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
    limit=$(cat "$file" 2> /dev/null || true)
    [[ $limit =~ ^[0-9]{1,18}$ ]] || continue # "max", and a number of 19 digits, are no limit.
    limit=$((limit / 1024))
    kib=$((limit < kib ? limit : kib))
  done
  echo "$kib"
}

# The number of compilers that fit into memory: g++ needs almost 2 GiB for a file with libtorch.
jobs_by_memory() {
  local jobs=$(($(memory_kib) >> 21))
  echo $((jobs > 0 ? jobs : 1))
}

# One compiler per core, but no more than fit into memory.
jobs_max() {
  local cores by_memory
  cores=$(nproc)
  by_memory=$(jobs_by_memory)
  echo $((cores < by_memory ? cores : by_memory))
}
