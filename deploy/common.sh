# Sourced by ./dev and the scripts beside this file: messages, and the machine's limits.
# shellcheck shell=bash

say() { printf '==> %s\n' "$*"; }

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# need_machine: the prebuilt libtorch and the SIMD kernels are for one architecture.
need_machine() {
  [ "$(uname -s)" = Linux ] || die "Tributary builds on Linux; this is $(uname -s)"
  [ "$(uname -m)" = x86_64 ] || die "Tributary builds on x86_64; this machine is $(uname -m)"
}

# need_disk FOLDER GIB: the disk under FOLDER has that much room.
need_disk() {
  local free_kib
  free_kib=$(df -Pk "$1" | awk 'NR == 2 { print $4 }')
  [ "$free_kib" -ge $(($2 << 20)) ] ||
    die "$1 has $((free_kib >> 10)) MiB free and the build needs about $2 GiB: free some, or" \
      "clone to a larger disk"
}

# How many compilers memory has room for: a file that includes libtorch takes g++ close to 2 GiB.
jobs_by_memory() {
  awk '/^MemTotal:/ { jobs = int($2 / 1048576 / 2); print (jobs > 0 ? jobs : 1) }' /proc/meminfo
}

# One compiler per core, but no more than that.
jobs_max() {
  local cores by_memory
  cores=$(nproc)
  by_memory=$(jobs_by_memory)
  echo $((cores < by_memory ? cores : by_memory))
}
