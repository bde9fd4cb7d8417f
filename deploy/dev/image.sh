# SPDX-License-Identifier: Apache-2.0
# Sourced by ./dev: the server's container image, and what Kubernetes takes.
# shellcheck shell=bash

# image [client]: makes the root file system of deploy/containers/server.Containerfile in
# build/images/server, without a registry, and runs a federation with it. Where buildah is there, and
# works, it also writes build/images/server.tar, which `podman load` takes. `client` makes that of
# client.Containerfile from the packages of build/deb, in build/images/client, and runs federations there.
# FL_BIN: take the programs there.
image() {
  local programs=${FL_BIN:-build/bin} of=${1:-server}
  case $of in server | client) ;; *) die "./dev image makes the server's or the client's, not that of '$of'" ;; esac
  [ -n "${FL_BIN:-}" ] || build
  mkdir -p build/images
  rm -rf "build/images/$of"
  "${of}_image"
}

server_image() {
  deploy/install-deps.sh binutils iproute2 tzdata 'buildah?'
  deploy/containers/server-root.sh "$programs/fl-server" build/images/server
  FL_BIN=$programs tests/install/image_test.sh build/images/server
  if command -v buildah > /dev/null; then write_image; fi
}

# The image's base, debian:12-slim, is what mmdebstrap makes as minbase.
client_image() {
  local release log=build/images/client.log
  release=$(. /etc/os-release && echo "$VERSION_CODENAME")
  compgen -G 'build/deb/tributary-client_*.deb' > /dev/null || die "there are no packages in build/deb: run ./dev deb"
  deploy/install-deps.sh mmdebstrap iproute2
  # shellcheck disable=SC2016
  mmdebstrap --variant=minbase --customize-hook='mkdir "$1/packages"' \
    --customize-hook='cp build/deb/*.deb deploy/containers/client-setup.sh "$1/packages"' \
    --customize-hook='chroot "$1" /packages/client-setup.sh' \
    "$release" build/images/client http://deb.debian.org/debian > "$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "the root file system could not be made, see above and $log"
  }
  FL_BIN=$programs tests/install/client_image_test.sh build/images/client
}

# write_image: the root file system as an image in an archive.
write_image() {
  local version container log=build/images/buildah.log tool
  version=$(sed -n 's/.*software_version = "\([^"]*\)".*/\1/p' shared/base/version.hpp)
  tool=(buildah --storage-driver vfs --root "$PWD/build/images/.storage" --runroot "$PWD/build/images/.run")
  if container=$("${tool[@]}" from scratch 2> "$log") &&
    "${tool[@]}" copy --quiet "$container" build/images/server / > /dev/null 2>> "$log" &&
    "${tool[@]}" config --user 10001:10001 --entrypoint '["/usr/bin/fl-server"]' \
      --cmd '--state /var/lib/tributary/server' --volume /var/lib/tributary --port 8443 --port 8080 \
      --stop-signal SIGTERM "$container" 2>> "$log" &&
    "${tool[@]}" commit --quiet "$container" \
      "oci-archive:build/images/server.tar:tributary-server:$version" > /dev/null 2>> "$log"; then
    say "made build/images/server.tar: $(du -h build/images/server.tar | cut -f1)"
  else
    say "buildah does not work here, so there is no image in an archive: $(tail -n 1 "$log")"
  fi
  rm -rf build/images/.storage build/images/.run
}

# manifests [--write]: holds the manifests and the Helm chart against Kubernetes' schemas. --write makes
# the manifests from the chart first.
manifests() {
  deploy/install-deps.sh golang-go golang-github-masterminds-sprig-dev golang-github-ghodss-yaml-dev \
    golang-github-xeipuuv-gojsonschema-dev
  mkdir -p build
  GO111MODULE=off GOPATH=/usr/share/gocode GOFLAGS=-trimpath GOCACHE=$PWD/build/go-cache \
    go build -o build/render deploy/helm/render/render.go
  export RENDER=$PWD/build/render
  if [ "${1:-}" = --write ]; then python3 deploy/helm/plain.py; fi
  [ -n "${FL_BIN:-}" ] || build
  tests/process/make-venv.sh build/manifests-venv "$PWD/deploy/requirements-manifests.txt"
  local test
  for test in manifests chart; do
    FL_SOURCE=$PWD FL_BIN=${FL_BIN:-$PWD/build/bin} \
      build/manifests-venv/bin/python "tests/install/${test}_test.py"
  done
}
