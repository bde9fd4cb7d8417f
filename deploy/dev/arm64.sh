# SPDX-License-Identifier: Apache-2.0
# Sourced by ./dev: a build for ARM64 on x86_64, and its tests under QEMU.
# shellcheck shell=bash

# The tests of arithmetic, and of bytes that another machine reads or has written.
arm64_tests=(base_test params_test kernels_test codec_test accumulator_test store_test)

# arm64_root FOLDER: the libraries of this release for ARM64, unpacked and not installed: so this machine
# needs no foreign packages, and nothing of ARM64 runs here.
arm64_root() {
  local root=$1 compiler packages release
  if [ -e "$root/made" ]; then return 0; fi
  say "unpacking the libraries for ARM64 into $root"
  compiler=$(aarch64-linux-gnu-g++ -dumpversion)
  packages=(libc6-dev "libstdc++-${compiler%%.*}-dev" doctest-dev)
  mapfile -t -O "${#packages[@]}" packages < <(deploy/install-deps.sh --libraries)
  # shellcheck source=/dev/null
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  rm -rf "$root"
  mkdir -p "$root"
  mmdebstrap --variant=extract --architectures=arm64 --include="$(tr ' ' ',' <<< "${packages[*]}")" \
    "$release" "$root" > "$root.log" 2>&1 || {
    tail -n 20 "$root.log" >&2
    rm -rf "$root"
    die "mmdebstrap could not unpack the libraries for ARM64, see above and $root.log"
  }
  # Links to /lib/… would lead to this machine's libraries.
  find "$root" -lname '/*' -print0 | while IFS= read -r -d '' link; do
    ln -sfnr "$root$(readlink "$link")" "$link"
  done
  touch "$root/made"
}

# arm64 [CTEST-ARGUMENT…]: builds the programs and the tests above for ARM64, without libtorch, and runs
# the tests under QEMU. Then processes of ARM64 and of x86_64 must get the same models.
arm64() {
  need_machine
  deploy/install-deps.sh --also g++-aarch64-linux-gnu qemu-user mmdebstrap
  mkdir -p build-arm64
  arm64_root build-arm64/root
  build_preset arm64 build-arm64 fl-server fl-client fl-sim fl-codec "${arm64_tests[@]}"
  run_tests arm64 build-arm64 -R "^($(tr ' ' '|' <<< "${arm64_tests[*]}"))\$" "$@"
  build
  say "testing: processes of ARM64 and of x86_64"
  FL_BIN=$PWD/build/bin FL_SOURCE=$PWD python3 tests/process/arm64_test.py --verbose || failed=$((failed + 1))
  summary
}
