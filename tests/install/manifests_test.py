# SPDX-License-Identifier: Apache-2.0
"""deploy/kubernetes/ against Kubernetes' own schemas, against itself and against the programs.

`./dev manifests` runs this where deploy/requirements-manifests.txt is installed."""

import os
import re
import subprocess
import tempfile
import tomllib
import unittest
from pathlib import Path

import kubernetes_validate
import yaml

SOURCE, BIN = Path(os.environ["FL_SOURCE"]), Path(os.environ["FL_BIN"])
FOLDER = SOURCE / "deploy" / "kubernetes"
RELEASES = ("1.27", "1.32", "1.37")  # The first has the retention policy of volume claims.
FOREIGN = {"ServiceMonitor": "monitoring.coreos.com/v1"}  # Custom resources have no schema there.


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def check_schema(document):
    """Raises an error if an object does not fit the schema of a release of Kubernetes."""
    if document["kind"] in FOREIGN:
        if document["apiVersion"] != FOREIGN[document["kind"]]:
            raise ValueError(f"{document['kind']} of {document['apiVersion']}")
        return
    for release in RELEASES:
        kubernetes_validate.validate(document, release, strict=True)


class Manifests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = {path.name: documents(path) for path in sorted(FOLDER.glob("*.yaml"))}
        cls.all = [document for found in cls.files.values() for document in found]

    def one(self, file, kind, name=None):
        found = [
            x for x in self.files[file]
            if x["kind"] == kind and name in (None, x["metadata"]["name"])
        ]  # fmt: skip
        self.assertEqual(len(found), 1, f"{file}: {kind} {name}")
        return found[0]

    def test_every_document_fits_its_schema(self):
        self.assertGreater(len(self.all), 10)
        for document in self.all:
            with self.subTest(document["metadata"]["name"], kind=document["kind"]):
                check_schema(document)

    def test_a_wrong_document_does_not_fit(self):
        wrong = self.one("server.yaml", "PodDisruptionBudget") | {"spec": {"minAvailabel": 1}}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, RELEASES[-1], strict=True)

    def test_selectors_find_what_they_mean(self):
        for file, name in (("server.yaml", "tributary-server"), ("client.yaml", "tributary-client")):
            pods = self.one(file, "StatefulSet")["spec"]
            labels = pods["template"]["metadata"]["labels"].items()
            selectors = [pods["selector"]["matchLabels"]]
            selectors += [x["spec"]["selector"] for x in self.files[file] if x["kind"] == "Service"]
            selectors += [
                (x["spec"].get("podSelector") or x["spec"].get("selector"))["matchLabels"]
                for x in self.files[file]
                if x["kind"] in ("NetworkPolicy", "PodDisruptionBudget")
            ]
            self.assertGreaterEqual(len(selectors), 3)
            for selector in selectors:
                self.assertLessEqual(selector.items(), labels)
            self.one(file, "Service", pods["serviceName"])
            self.assertEqual(pods["template"]["spec"]["serviceAccountName"], name)
        monitored = self.files["servicemonitor.yaml"][0]["spec"]
        admin = self.one("server.yaml", "Service", "tributary-server-admin")
        self.assertLessEqual(
            monitored["selector"]["matchLabels"].items(), admin["metadata"]["labels"].items()
        )
        self.assertIn(monitored["endpoints"][0]["port"], [x["name"] for x in admin["spec"]["ports"]])
        credentials = monitored["endpoints"][0]["authorization"]["credentials"]
        secret = self.files["secret.example.yaml"][0]
        self.assertEqual(credentials["name"], secret["metadata"]["name"])
        self.assertIn(credentials["key"], secret["stringData"])

    def pod(self, file):
        pod = self.one(file, "StatefulSet")["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        return pod, container

    def test_pods_have_no_rights_and_their_volumes_exist(self):
        for file in ("server.yaml", "client.yaml"):
            pod, container = self.pod(file)
            self.assertIs(pod["automountServiceAccountToken"], False)
            self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
            self.assertEqual(
                container["securityContext"],
                {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
            )
            claims = self.one(file, "StatefulSet")["spec"]["volumeClaimTemplates"]
            volumes = {x["name"] for x in pod["volumes"]} | {x["metadata"]["name"] for x in claims}
            self.assertEqual({x["name"] for x in container["volumeMounts"]}, volumes)

    def test_probes_tell_alive_from_ready(self):
        _, container = self.pod("server.yaml")
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        self.assertEqual(container["livenessProbe"]["httpGet"], {"path": "/livez", "port": "admin"})
        self.assertEqual(
            container["readinessProbe"]["httpGet"], {"path": "/readyz", "port": "admin"}
        )
        self.assertEqual(ports, {"clients": 8443, "admin": 8080})

    def test_pods_get_the_time_that_a_clean_end_may_take(self):
        limits = (SOURCE / "shared" / "base" / "limits.hpp").read_text()
        stop_s = int(re.search(r"stop_max = (\d+)s;", limits)[1])
        for file in ("server.yaml", "client.yaml"):
            pod, _ = self.pod(file)
            self.assertEqual(pod["terminationGracePeriodSeconds"], stop_s + 30)

    def test_the_programs_take_their_flags(self):
        """A port that nobody has ends the server after it has read all flags."""
        with tempfile.TemporaryDirectory() as folder:
            for file, program, key in (
                ("server.yaml", "fl-server", "server.toml"),
                ("client.yaml", "fl-client", "client.toml"),
            ):
                text = self.one(file, "ConfigMap")["data"][key]
                tomllib.loads(text)
                config = Path(folder) / key
                config.write_text(text)
                _, container = self.pod(file)
                self.assertIn(f"--config=/etc/tributary/{key}", container["args"])
                done = subprocess.run(
                    [BIN / program, "--config", config, "--state", f"{folder}/{program}"]
                    + (["--listen", "nowhere"] if program == "fl-server" else []),
                    capture_output=True, text=True, timeout=60,
                )  # fmt: skip
                # 2 would be a wrong flag.
                self.assertEqual(done.returncode, 1, done.stderr)
                expected = "--listen" if program == "fl-server" else "join-token"
                self.assertIn(expected, done.stderr)


if __name__ == "__main__":
    unittest.main()
