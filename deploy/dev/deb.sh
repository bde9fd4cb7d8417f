# SPDX-License-Identifier: Apache-2.0
# Sourced by ./dev: the Debian packages.
# shellcheck shell=bash

# Tags of lintian about uploads to Debian, which these packages are not meant for: the maintainer is
# the person who builds them, and the first entry of the changelog need not close Debian's bug that
# asks for them.
not_for_us='bogus-mail-host
bogus-mail-host-in-debian-changelog
initial-upload-closes-no-bugs'

# deb: writes build/deb/*.deb and looks at them with lintian. They need the libraries of the release that
# builds them, or later ones: Debian 13 takes those of Debian 12.
#   FL_DEB_REVISION=N        the packages' revision, 1 without it
#   FL_DEB_WITHOUT_TORCH=1   leave out tributary-torch, which takes minutes
#   FL_DEB_BUILD=FOLDER      take the build that is there
#   FL_DEB_MAINTAINER="NAME <MAIL>"  who answers for these packages
deb() {
  local build=${FL_DEB_BUILD:-$PWD/build} source=build/deb/source
  local maintainer=${FL_DEB_MAINTAINER:-The Tributary authors <tributary@localhost>}
  [ -n "${FL_DEB_BUILD:-}" ] || build
  deploy/install-deps.sh debhelper dh-python dpkg-dev fakeroot lintian patchelf
  rm -rf build/deb
  mkdir -p "$source"
  cp -r deploy/packages/debian "$source/debian"
  sed -i "s/^Maintainer: .*/Maintainer: $maintainer/" "$source/debian/control"
  deb_changelog > "$source/debian/changelog"
  say "making the packages"
  (
    cd "$source"
    export FL_BUILD=$build FL_SOURCE=$OLDPWD
    [ -z "${FL_DEB_WITHOUT_TORCH:-}" ] || export FL_WITHOUT_TORCH=1
    dpkg-buildpackage --build=binary --no-sign --no-check-builddeps
  ) > build/deb/build.log 2>&1 || {
    tail -n 50 build/deb/build.log >&2
    die "the packages could not be made, see above and build/deb/build.log"
  }
  say "looking at them with lintian"
  lintian --fail-on error,warning --allow-root --suppress-tags "$(paste -sd, <<< "$not_for_us")" \
    build/deb/*.changes
  rm -rf "$source"
  (cd build/deb && du -h ./*.deb)
}

# The changelog of the packages: one entry, for this version. CHANGELOG.md has the real one.
deb_changelog() {
  local version date
  version=$(sed -n 's/.*software_version = "\([^"]*\)".*/\1/p' shared/base/version.hpp)
  date=$(git log -1 --format=%aD 2> /dev/null || date -R)
  cat << END
tributary (${version/-/\~}-${FL_DEB_REVISION:-1}) unstable; urgency=medium

  * Version $version, as its CHANGELOG.md describes it.

 -- $maintainer  $date
END
}

# deb_test [RELEASE…]: installs the packages in fresh root file systems, and runs a federation there.
# Without arguments: the release of Debian that has built them.
deb_test() {
  [ -n "$(echo build/deb/*.deb)" ] || die "there are no packages in build/deb: run ./dev deb"
  deploy/install-deps.sh mmdebstrap iproute2
  exec tests/install/deb_test.sh "$@"
}
