# SPDX-License-Identifier: Apache-2.0
# Sourced by ./dev: the tests, and what they add up to.
# shellcheck shell=bash

passed=0
failed=0
skipped=0
left_out=  # The reason of each test that left itself out: a line each.

# run_tests PRESET FOLDER [CTEST-ARGUMENT…]: adds its results to the three counts.
run_tests() {
  local preset=$1 report=$PWD/$2/tests.xml log=$PWD/$2/Testing/Temporary/LastTest.log status=0 launcher=()
  shift 2
  rm -f "$report"
  # ThreadSanitizer (but for the newest) can't place its shadow memory in a randomised address space
  # of today's kernels. Some containers forbid to switch that off, and mostly don't need it.
  if [[ $preset = tsan* ]] && setarch -R true 2> /dev/null; then launcher=(setarch -R); fi
  say "testing: $preset"
  "${launcher[@]}" ctest --preset "$preset" --output-junit "$report" "$@" || status=$?
  count_tests "$report"
  # When a file of tests passes, ctest does not say that some of them have left themselves out.
  left_out+=$(sed -n "s/.*\.\.\. skipped ['\"]\(.*\)['\"]\$/\1/p" "$log" 2> /dev/null)$'\n'
  # If no test failed, ctest itself has failed.
  if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then die "ctest ended with status $status"; fi
}

# count_tests REPORT: adds the numbers of a JUnit report. There is none where no test was chosen.
count_tests() {
  [ -e "$1" ] || return 0
  local suite total bad without
  suite=$(sed -n '/<testsuite /,/>/p' "$1" | tr '\n' ' ')
  total=$(attribute tests)
  bad=$(attribute failures)
  without=$(($(attribute skipped) + $(attribute disabled)))
  passed=$((passed + total - bad - without))
  failed=$((failed + bad))
  skipped=$((skipped + without))
}

# attribute NAME: its number in $suite, 0 without one.
attribute() {
  local value
  value=$(sed -n "s/.*[[:space:]]$1=\"\([0-9]*\)\".*/\1/p" <<< "$suite")
  echo "${value:-0}"
}

# The last line of ./dev test, for people and for CI.
summary() {
  local line="$passed passed, $failed failed" reasons
  reasons=$(sed '/^$/d' <<< "$left_out" | sort | uniq -c)
  if [ -n "$reasons" ]; then printf 'Left out inside of these tests:\n%s\n' "$reasons"; fi
  if [ "$skipped" -gt 0 ]; then line+=", $skipped skipped"; fi
  echo "$line, in $((SECONDS / 60)) minutes"
  [ "$failed" -eq 0 ] || exit 1
  [ "$passed" -gt 0 ] || die "no test ran"
}

# build_meanwhile PRESET TARGET: builds beside work that waits part of its time, at a lower
# priority.
meanwhile=
build_meanwhile() {
  configure "$1" "build-$1"
  nice ninja -C "build-$1" -j "$(jobs_max)" "$2" > "build-$1/meanwhile.log" 2>&1 &
  meanwhile=$!
  trap 'kill "$meanwhile" 2> /dev/null || true' EXIT
}

# finish_build PRESET: shows the rest of what build_meanwhile began.
finish_build() {
  say "building: $1"
  tail --pid="$meanwhile" -n 1 -f "build-$1/meanwhile.log"
  trap - EXIT
  wait "$meanwhile" || {
    tail -n 100 "build-$1/meanwhile.log" >&2
    die "the $1 build failed, see above"
  }
}

# sanitizer_tests PRESET FOLDER [CTEST-ARGUMENT…]
sanitizer_tests() {
  install_clang
  build_preset "$1" "$2" fast_tests ws_echo
  run_tests "${1%-all}-all" "$2" "${@:3}"
  summary
}

# check [CTEST-ARGUMENT…]: what every commit should pass. Its build compiles each file by itself: a
# small change compiles few, and an include that is missing shows (the other builds compile several
# files as one).
check() {
  install_clang git clang-format
  say "checking the format"
  format --check
  build_preset check build-check fast_tests
  run_tests check build-check "$@"
  summary
}

# alone [COMMIT]: compiles by itself, as ./dev check does, each file that has changed since a commit:
# the newest one that is six hours older than the last. Only in such a build an include that is
# missing shows; to build all files so takes as long as everything else that CI does.
alone() {
  install_clang git
  build_preset check build-check fl_proto
  local last commit=${1:-}
  last=$(git log -1 --format=%ct)
  [ -n "$commit" ] || commit=$(git rev-list -1 --before=$((last - 21600)) HEAD)
  [ -n "$commit" ] || commit=$(git rev-list --max-parents=0 HEAD | tail -n 1)
  say "compiling by itself what has changed since $(git log -1 --format='%h of %cd' "$commit")"
  git diff --name-only --diff-filter=d "$commit" -- '*.cpp' '*.hpp' |
    python3 deploy/dev/alone.py build-check "$(jobs_max)"
}

# Packages for the tests of the Python package with PyTorch, of the dashboard in a browser, and of a
# site under mpirun. Tests that miss something are skipped.
test_packages=('python3-torch?' 'python3-numpy?' 'python3-pandas?' 'chromium?' 'openmpi-bin?')

quick_tests() {
  need_machine
  deploy/install-deps.sh --also "${test_packages[@]}"
  build all
  run_tests release build "$@"
  summary
}

# The tools with which single tests check our files. Some of these packages start a service.
# Debian's scikit-learn is not among them: it wants another Boost.
tool_packages=(
  'prometheus?' 'squid?' 'tinyproxy?' 'zsh?' 'fish?' 'mandoc?' 'man-db?' 'jq?' 'r-cran-jsonlite?' 'openmpi-bin?'
)

# everything [CTEST-ARGUMENT…]: all_tests with these tools, then each command of ./dev that tests what it
# makes, one after the other. Hours; needs root, for root file systems.
everything() {
  test_packages+=("${tool_packages[@]}")
  deploy/install-deps.sh --also python3-venv
  tests/process/make-venv.sh build/tools-venv "$PWD/deploy/requirements-tools.txt"
  PATH=$PWD/build/tools-venv/bin:$PATH FL_EVERY_STEP=1 run_all_tests "$@"
  say "simulating 2,000 federations"
  if FL_SIM_SEEDS=2000 build/bin/sim_test; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  local made commands=(manifests wheel deb 'deb-test bookworm trixie' image 'image client' arm64)
  if command -v nvcc > /dev/null; then
    commands+=(cuda)
  else
    left_out+=$'./dev cuda: there is no nvcc\n'
  fi
  for made in "${commands[@]}"; do
    say "./dev $made"
    # shellcheck disable=SC2086 # A command and its arguments.
    if "$0" $made; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
  done
  summary
}

all_tests() {
  run_all_tests "$@"
  summary
}

run_all_tests() {
  install_clang "${test_packages[@]}"
  # If memory has room for both builds: the processor idles while libtorch is fetched.
  if [ "$(jobs_by_memory)" -ge $((2 * $(jobs_max))) ]; then build_meanwhile asan fast_tests; fi
  build release_tests
  [ -n "$meanwhile" ] || build_meanwhile asan fast_tests
  run_tests release-rest build "$@"
  finish_build asan
  # In a test with one thread ThreadSanitizer has nothing to find; ./dev tsan runs those too.
  build_meanwhile tsan threaded_tests
  run_tests asan build-asan "$@"
  finish_build tsan
  run_tests tsan-threads build-tsan "$@"
}

fuzz() {
  local target=${1:-} found
  [ -d "tests/fuzz/corpus/${target:-none}" ] ||
    die "which target? One of: $(cd tests/fuzz/corpus && echo *)"
  shift
  install_clang
  build_preset fuzz build-fuzz "fuzz_$target"
  # New findings go to the first folder; the seeds are only read.
  found=build-fuzz/corpus/$target
  mkdir -p "$found"
  exec "build-fuzz/bin/fuzz_$target" -artifact_prefix=build-fuzz/ "$@" \
    "$found" "tests/fuzz/corpus/$target"
}

mutate() {
  install_clang git
  exec python3 tests/mutate/mutate.py "$@"
}

sim() {
  [ $# -eq 1 ] || die "which seed? ./dev sim SEED"
  build sim_test
  FL_SIM_SEED=$1 exec build/bin/sim_test
}

bench() {
  local ranks
  build
  case ${1:-} in
    attacks | books | dashboard | demo | flower | governor | large | niid | overlap | ranks | robust | trainer) exec python3 "tests/bench/${1}_bench.py" "${@:2}" ;;
    cross-datacenter) exec python3 examples/cross-datacenter/compare.py "${@:2}" ;;
    gpu)
      [ -x build-cuda/bin/fl-client ] || die "there is no build for GPUs yet: ./dev cuda"
      FL_BIN=$PWD/build-cuda/bin exec python3 tests/bench/gpu_bench.py "${@:2}"
      ;;
    soak)
      tests/process/make-venv.sh build/venv
      exec build/venv/bin/python tests/bench/soak_bench.py "${@:2}"
      ;;
    sites)
      ninja -C build sites_bench
      if [ $# -gt 1 ]; then exec build/bin/sites_bench "${@:2}"; fi
      for ranks in 2 4; do build/bin/sites_bench "$ranks"; done
      python3 tests/bench/ranks_bench.py
      exec python3 tests/bench/overlap_bench.py
      ;;
    parallel)
      ninja -C build parallel_bench
      exec python3 tests/bench/parallel_bench.py "${@:2}"
      ;;
    aggregate | codecs | kernels | learn | masks | sessions)
      ninja -C build "${1}_bench"
      exec "build/bin/${1}_bench" "${@:2}"
      ;;
    *)
      ninja -C build fl-bench
      exec build/bin/fl-bench "$@"
      ;;
  esac
}
