#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# server-root.sh FL-SERVER OUT: the root file system of the server's image: the program, the libraries
# that it needs, their licences, and the files that name its user. No shell, no package manager.
# Runs on the release of Debian that the program was built for, also in server.Containerfile.
set -eu
[ $# -eq 2 ] || {
  echo "usage: $0 FL-SERVER OUT" >&2
  exit 2
}
program=$1 out=$2
mkdir -p "$out"/{etc/tributary,usr/bin,usr/share/doc,var/lib/tributary,run/secrets,tmp}
chmod 1777 "$out/tmp"

install -m 0755 "$program" "$out/usr/bin/fl-server"
if command -v strip > /dev/null; then strip --strip-unneeded "$out/usr/bin/fl-server"; fi

# "name => /path (address)", and the loader, which has no arrow.
ldd "$program" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^\t\(\/[^ ]*\) .*/\1/p' | while read -r library; do
  # The loader looks in the folders of Debian: /lib/TRIPLET, and /lib64 for itself.
  install -D -m 0755 "$(realpath "$library")" "$out$library"
  package=$(dpkg-query --search "$(realpath "$library")" "$library" 2> /dev/null | sed 's/:.*//;q')
  if [ -n "$package" ] && ! [ -e "$out/usr/share/doc/$package" ]; then
    install -D -m 0644 "/usr/share/doc/$package/copyright" "$out/usr/share/doc/$package/copyright"
  fi
done

# The time zones, by which the variable TZ and --quiet go. `right` and `posix` are all of them again.
mkdir -p "$out/usr/share/zoneinfo"
tar -C /usr/share/zoneinfo --exclude ./right --exclude ./posix -c . | tar -C "$out/usr/share/zoneinfo" -x
install -D -m 0644 /usr/share/doc/tzdata/copyright "$out/usr/share/doc/tzdata/copyright"

cat > "$out/etc/passwd" << 'END'
root:x:0:0:root:/:/nonexistent
tributary:x:10001:10001:Tributary:/var/lib/tributary:/nonexistent
END
cat > "$out/etc/group" << 'END'
root:x:0:
tributary:x:10001:
END
echo 'hosts: files dns' > "$out/etc/nsswitch.conf"
chown -R 10001:10001 "$out/var/lib/tributary" 2> /dev/null || true
