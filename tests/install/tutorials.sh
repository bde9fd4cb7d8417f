#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in a fresh root file system in which systemd has booted (deb_test.sh): the tutorials, word for
# word, with the packages, the services and their users.
set -eu
# A root that is no mount of its own allows no user namespaces.
for unit in server client@; do
  mkdir -p "/etc/systemd/system/fl-$unit.service.d"
  printf '[Service]\nPrivateUsers=no\n' > "/etc/systemd/system/fl-$unit.service.d/test.conf"
done
systemctl daemon-reload
echo "127.0.0.1 $(hostname) federation.example.org proxy.hospital.example" >> /etc/hosts
systemd-tmpfiles --create tributary-server.conf
export FL_INSTALLED=1 FL_PACKAGES=/packages FL_BIN=/usr/bin FL_SOURCE=/packages/source
export HOME=/root PYTHONDONTWRITEBYTECODE=1
python3 /packages/source/tests/process/tutorials_test.py
rm -rf /var/lib/tributary/* /etc/tributary/hospitals.* /srv/federation /etc/systemd/system/fl-*.service.d
