#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs inside the image of a CPU client, as root: installs the client's packages from /packages, and
# makes its user. Used by client.Containerfile and by ./dev image client.
set -eu
export DEBIAN_FRONTEND=noninteractive
cd /packages
apt-get update
# The packages that a client needs, of all that ./dev deb makes.
apt-get install --yes --no-install-recommends ./tributary-client_*.deb ./tributary-torch_*.deb \
  ./tributary-libs_*.deb ./libfl-codec0_*.deb ./python3-tributary-fl_*.deb tzdata
cd /
rm -rf /packages /var/lib/apt/lists/*
groupadd --gid 10001 tributary
useradd --uid 10001 --gid 10001 --home-dir /var/lib/tributary --shell /usr/sbin/nologin tributary
install --directory --owner 10001 --group 10001 --mode 0700 /var/lib/tributary
