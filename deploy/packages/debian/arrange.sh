#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# arrange.sh SOURCE BUILD MULTIARCH: makes of what cmake has installed into debian/tmp what the
# packages have.
set -eu
source=$1 build=$2 multiarch=$3
tmp=debian/tmp/usr

# fl-client looks for libfl-torch.so and fl-rank in its own folder. If that is /usr/bin, a library
# must not lie there.
mkdir -p "$tmp/lib/tributary" "$tmp/lib/$multiarch"
mv "$tmp/bin/fl-client" "$tmp/bin/fl-sim" "$tmp/lib/tributary/"
ln -s ../lib/tributary/fl-client "$tmp/bin/fl-client"
ln -s ../lib/tributary/fl-sim "$tmp/bin/fl-sim"
mv "$tmp"/lib/libfl-codec.so* "$tmp"/lib/libfl-client.so* "$tmp/lib/$multiarch/"
sed -i "s|/lib/libfl-client|/lib/$multiarch/libfl-client|" \
  "$tmp"/lib/cmake/Tributary/TributaryClientTargets-*.cmake

# Two libraries whose names change with each release of Debian go with the programs, so that packages
# of Debian 12 install on Debian 13 too. The programs find them by their run path.
for library in libfmt libspdlog; do
  ldd "$tmp/bin/fl-server" | sed -n "s/^\t\($library\.so[^ ]*\) => \([^ ]*\) .*/\1 \2/p"
done | while read -r name path; do
  cp -L "$path" "$tmp/lib/tributary/$name"
  chmod 0644 "$tmp/lib/tributary/$name"
  patchelf --set-rpath /usr/lib/tributary "$tmp/lib/tributary/$name"
  # The line for dpkg-shlibdeps: "libfmt 9 tributary-libs".
  echo "${name%%.so.*} ${name##*.so.} tributary-libs" >> debian/shlibs.local
  package=$(dpkg-query --search "$path" "$(realpath "$path")" 2> /dev/null | sed 's/:.*//;q')
  cp "/usr/share/doc/$package/copyright" "debian/$name.copyright"
done
for file in "$tmp/bin/fl-server" "$tmp/lib/tributary/fl-client" "$tmp/lib/tributary/fl-sim" \
  "$tmp/lib/$multiarch"/libfl-codec.so.*.* "$tmp/lib/$multiarch"/libfl-client.so.*.*.*; do
  patchelf --set-rpath /usr/lib/tributary "$file"
done

if [ -e "$tmp/bin/fl-rank" ] && [ -z "${FL_WITHOUT_TORCH:-}" ]; then
  mv "$tmp/bin/fl-rank" "$tmp/bin/libfl-torch.so" "$tmp/lib/tributary/"
  torch=$(sed -n 's/^FL_LIBTORCH:PATH=//p' "$build/CMakeCache.txt")
  torch=${torch:-$source/build/libtorch}
  if [ -d "$torch/torch/lib" ]; then torch=$torch/torch; fi
  cp "$torch"/lib/libtorch_cpu.so "$torch"/lib/libc10.so "$torch"/lib/libgomp.so.1 "$tmp/lib/tributary/"
  # PyTorch's libraries with CUDA need two of NVIDIA's even on a CPU.
  for library in cupti cudart; do
    find "$torch/../nvidia" -name "lib$library.so.[0-9]*" -exec cp {} "$tmp/lib/tributary/" \; 2> /dev/null || true
  done
  for file in fl-rank libfl-torch.so libtorch_cpu.so libc10.so; do
    patchelf --set-rpath /usr/lib/tributary "$tmp/lib/tributary/$file"
  done
  cat "$torch"/../torch-*.dist-info/licenses/LICENSE "$torch"/../torch-*.dist-info/licenses/NOTICE \
    > debian/torch-licences 2> /dev/null || echo "See https://pytorch.org" > debian/torch-licences
fi

cp "$source/deploy/systemd/fl-server.service" debian/tributary-server.fl-server.service
cp "$source/deploy/systemd/fl-client@.service" debian/tributary-client.fl-client@.service
for part in server client; do
  cp "$source/deploy/systemd/tributary-$part.sysusers" "debian/tributary-$part.sysusers"
done
cp "$source/deploy/systemd/tributary-server.tmpfiles" debian/
mkdir -p debian/tmp/etc/tributary
cp "$source/deploy/systemd/server.toml" debian/tmp/etc/tributary/

python=$tmp/lib/python3/dist-packages
version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$source/client/python/tributary_fl/_version.py")
mkdir -p "$python/tributary_fl" "$python/tributary_fl-$version.dist-info"
cp "$source"/client/python/tributary_fl/*.py "$source/client/python/tributary_fl/py.typed" "$python/tributary_fl/"
cat > "$python/tributary_fl-$version.dist-info/METADATA" << END
Metadata-Version: 2.1
Name: tributary-fl
Version: $version
Summary: Federated learning over slow, expensive and unreliable links
License: Apache-2.0
Requires-Dist: numpy>=1.22
END
