# SPDX-License-Identifier: Apache-2.0
# Sourced by ./dev: how each build folder is configured and built.
# shellcheck shell=bash

# configure PRESET FOLDER: once, and again for another FL_LIBTORCH; ninja itself notices other
# changes.
configure() {
  local preset=$1 folder=$2
  if ! [ "$folder/build.ninja" -nt CMakePresets.json ] ||
    ! grep -qx "FL_LIBTORCH:PATH=${FL_LIBTORCH:-}" "$folder/CMakeCache.txt"; then
    say "configuring $folder"
    mkdir -p "$folder"
    cmake --preset "$preset" "-DFL_LIBTORCH=${FL_LIBTORCH:-}" > "$folder/configure.log" 2>&1 || {
      cat "$folder/configure.log" >&2
      die "cmake --preset $preset failed, see above"
    }
    touch "$folder/build.ninja"
  fi
}

# build_preset PRESET FOLDER [TARGET…]
build_preset() {
  local preset=$1 folder=$2
  shift 2
  need_machine
  deploy/install-deps.sh
  [ -e "$folder/build.ninja" ] || need_disk . 6
  configure "$preset" "$folder"
  ninja -C "$folder" -j "$(jobs_max)" "$@"
}

# build [TARGET…]: the release build; without a TARGET the programs only.
build() {
  need_machine
  deploy/install-deps.sh
  [ -n "${FL_LIBTORCH:-}" ] || deploy/fetch-libtorch.sh
  build_preset release build "${@:-programs}"
}

# install_clang [PACKAGE…]: the compiler of the sanitizers' builds and of ./dev check. It takes two
# thirds of GCC's time, and it gives warnings and code that are not GCC's.
install_clang() {
  need_machine
  deploy/install-deps.sh --also clang libclang-rt-dev "$@"
}

clean() {
  rm -rf build-asan build-asan-all build-tsan build-fuzz build-clang build-lint build-check build-mutate build-arm64 build-cuda
  if [ "${1:-}" = --all ]; then
    rm -rf build
  elif [ -d build ]; then
    find build -mindepth 1 -maxdepth 1 ! -name libtorch -exec rm -rf {} +
  fi
}
