# SPDX-License-Identifier: Apache-2.0
# Sourced by ./dev: what looks after the source.
# shellcheck shell=bash

format() {
  deploy/install-deps.sh git clang-format
  local mode=(-i)
  if [ "${1:-}" = --check ]; then mode=(--dry-run --Werror); fi
  git ls-files -z --cached --others --exclude-standard '*.hpp' '*.cpp' '*.h' '*.cuh' '*.cu' |
    while IFS= read -r -d '' file; do
      if [ -e "$file" ]; then printf '%s\0' "$file"; fi
    done | xargs -0 -r clang-format "${mode[@]}"
}

lint() {
  deploy/install-deps.sh git clang-tidy
  [ -n "${FL_LIBTORCH:-}" ] || deploy/fetch-libtorch.sh
  # Each file by itself: most other builds compile several as one.
  build_preset lint build-lint fl_proto
  if [ $# -eq 0 ]; then
    mapfile -t files < <(git ls-files '*.cpp' |
      while read -r file; do
        if grep -qF "$PWD/$file\"" build-lint/compile_commands.json; then echo "$file"; fi
      done)
    set -- "${files[@]}"
  fi
  printf '%s\0' "$@" | xargs -0 -n 1 -P "$(jobs_max)" clang-tidy -p build-lint --quiet \
    --extra-arg=-Wno-unknown-warning-option
}

# site: the documents as a site, in build/site.
site() {
  deploy/install-deps.sh git python3-venv
  tests/process/make-venv.sh build/site-venv "$PWD/deploy/requirements-site.txt"
  NO_MKDOCS_2_WARNING=1 build/site-venv/bin/python deploy/site/build_site.py
  say "built build/site/index.html"
}

# docs: writes what documents have from elsewhere: the reference of flags from the programs' --help,
# the table of docs/design/includes.md from the file that the tidy test reads.
docs() {
  build
  FL_BIN=build/bin python3 tests/tidy/tidy_test.py --write
}
