# SPDX-License-Identifier: Apache-2.0
"""The Helm chart, rendered by deploy/helm/render: against Kubernetes' schemas, the plain manifests that
are made from it, its own schema and the programs. `./dev manifests` runs this."""

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path

import manifests_test
import yaml

SOURCE, BIN = Path(os.environ["FL_SOURCE"]), Path(os.environ["FL_BIN"])
sys.path.insert(0, str(SOURCE / "deploy" / "helm"))
import plain  # noqa: E402

PLACE = {"advertise": "fl.example.org"}
PINNED = {
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "federation", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]
    }}},
}  # fmt: skip
VALUES = {
    "the least": {"server": PLACE},
    "a secret of one's own": {"server": PLACE | {"existingSecret": "of-the-vault"}},
    "a secret of the chart's": {"server": PLACE | {"adminToken": "0123456789abcdef"}},
    "with the operator": {
        "server": PLACE | {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}}
    },
    "without what is optional": {
        "server": PLACE
        | {"podDisruptionBudget": {"enabled": False}, "networkPolicy": {"enabled": False}, "flags": {"model": None}}
    },
    "inside the cluster": {
        "imagePullSecrets": [{"name": "registry"}],
        "server": PLACE | PINNED | {"service": {"type": "ClusterIP", "port": 443, "annotations": {"a": "b"}}},
    },
    "a place on a fast disk": {
        "server": PLACE
        | {
            "persistence": {"storageClass": "local-ssd", "size": "1Ti"},
            "image": {"repository": "registry.example.org:5000/fl", "tag": "1", "pullPolicy": "Always"},
            "resources": {"limits": {"memory": "16Gi", "cpu": 8}},
        }
    },
    "a client alone": {"server": {"enabled": False}, "client": {"enabled": True, "gpus": 2} | PINNED},
    "both": {"server": PLACE, "client": {"enabled": True, "joinToken": "flj1.abc"}},
}
# Values that the schema or the templates refuse, and what is said.
REFUSED = (
    ({}, "server.advertise is missing"),
    ({"server": PLACE | {"advertise": "https://fl.example.org"}}, "server.advertise"),
    ({"server": PLACE | {"persistence": {"enabled": False}}}, "each restart would be a new server"),
    ({"server": PLACE | {"persistence": {"size": "many"}}}, "server.persistence.size"),
    ({"server": PLACE | {"adminToken": "short"}}, "server.adminToken"),
    ({"server": PLACE | {"adminToken": "0123456789abcdef", "existingSecret": "x"}}, "give one of them"),
    ({"server": PLACE | {"existingSecret": "No Name"}}, "server.existingSecret"),
    ({"server": PLACE | {"replicas": 2}}, "replicas is not allowed"),
    ({"server": PLACE | {"service": {"type": "Ingress"}}}, "server.service.type"),
    ({"server": PLACE | {"service": {"port": 70000}}}, "server.service.port"),
    ({"server": PLACE | {"flags": {"state": "/elsewhere"}}}, "server.flags"),
    ({"server": PLACE | {"flags": {"--rounds": 5}}}, "server.flags"),
    ({"server": PLACE | {"flags": {"rounds": {"most": 5}}}}, "server.flags.rounds"),
    ({"server": PLACE | {"image": {"pullPolicy": "Sometimes"}}}, "server.image.pullPolicy"),
    ({"server": PLACE, "client": {"enabled": True, "joinToken": "abc"}}, "client.joinToken"),
    ({"server": PLACE, "client": {"enabled": True, "gpus": -1}}, "client.gpus"),
    ({"server": PLACE, "client": {"enabled": True, "data": ""}}, "client.data is missing"),
    ({"server": PLACE, "clients": {"enabled": True}}, "clients is not allowed"),
    ({"server": {"enabled": False}}, "nothing would be installed"),
)


def objects(values, release="tributary"):
    """The objects by kind and name, as Kubernetes would get them."""
    found = {}
    for path, text in plain.render(values, release).items():
        for document in yaml.safe_load_all("" if path == "NOTES.txt" else text):
            if document:
                found[document["kind"], document["metadata"]["name"]] = document
    return found


def pod(found, part, release="tributary"):
    return found["StatefulSet", f"{release}-{part}"]["spec"]["template"]


class Chart(unittest.TestCase):
    def test_the_plain_manifests_are_made_from_it(self):
        for name in plain.FILES:
            made = plain.plain(name)
            self.assertEqual(made, (plain.FOLDER / name).read_text(), "run ./dev manifests --write")

    def test_a_release_is_what_the_plain_manifests_are(self):
        expected = {
            (document["kind"], document["metadata"]["name"]): document
            for document in manifests_test.documents(plain.FOLDER / "server.yaml")
        }
        found = objects({"server": {"advertise": "federation.example.org:8443"}})
        checksum = pod(found, "server")["metadata"].pop("annotations")
        self.assertEqual(list(checksum), ["checksum/config"])
        self.assertEqual(found, expected)

    def test_every_object_fits_its_schema(self):
        for name, values in VALUES.items():
            found = objects(values)
            self.assertGreater(len(found), 3)
            for document in found.values():
                with self.subTest(name, kind=document["kind"]):
                    manifests_test.check_schema(document)

    def test_values_do_what_they_say(self):
        found = {name: objects(values) for name, values in VALUES.items()}
        kinds = {name: {kind for kind, _ in made} for name, made in found.items()}
        self.assertEqual("ServiceMonitor" in kinds["the least"], False)
        self.assertEqual(
            kinds["with the operator"] - kinds["the least"], {"ServiceMonitor"}
        )
        self.assertEqual(
            kinds["the least"] - kinds["without what is optional"],
            {"PodDisruptionBudget", "NetworkPolicy"},
        )
        monitor = found["with the operator"]["ServiceMonitor", "tributary-server"]
        self.assertEqual(monitor["metadata"]["labels"]["release"], "prometheus")
        for name, secret in (
            ("the least", "tributary-server"),
            ("a secret of one's own", "of-the-vault"),
            ("a secret of the chart's", "tributary-server"),
        ):
            volumes = {x["name"]: x for x in pod(found[name], "server")["spec"]["volumes"]}
            self.assertEqual(volumes["admin-token"]["secret"]["secretName"], secret)
            self.assertEqual("Secret" in kinds[name], name == "a secret of the chart's")
        inside = found["inside the cluster"]
        self.assertNotIn("externalTrafficPolicy", inside["Service", "tributary-server"]["spec"])
        spec = pod(inside, "server")["spec"]
        self.assertEqual({key: spec[key] for key in PINNED}, PINNED)
        self.assertEqual(spec["imagePullSecrets"], [{"name": "registry"}])
        (container,) = pod(found["a place on a fast disk"], "server")["spec"]["containers"]
        self.assertEqual(container["image"], "registry.example.org:5000/fl:1")
        self.assertEqual(container["imagePullPolicy"], "Always")
        (claim,) = found["a place on a fast disk"]["StatefulSet", "tributary-server"]["spec"][
            "volumeClaimTemplates"
        ]
        self.assertEqual(claim["spec"]["storageClassName"], "local-ssd")
        self.assertEqual(claim["spec"]["resources"]["requests"]["storage"], "1Ti")
        (container,) = pod(found["a client alone"], "client")["spec"]["containers"]
        self.assertEqual(container["resources"]["limits"], {"memory": "8Gi", "nvidia.com/gpu": "2"})
        self.assertEqual(kinds["a client alone"] & {"PodDisruptionBudget", "ConfigMap"}, {"ConfigMap"})

    def test_the_server_may_reach_the_collector_that_its_flags_name_and_nothing_else(self):
        def egress(**flags):
            found = objects({"server": PLACE | {"flags": flags}})
            policy = found["NetworkPolicy", "tributary-server"]
            manifests_test.check_schema(policy)
            return [[(x["port"], x["protocol"]) for x in rule["ports"]] for rule in policy["spec"]["egress"]]

        for endpoint, port in (
            ("http://collector.monitoring:4318", 4318),
            ("http://collector.monitoring:4318/v1/traces", 4318),
            ("https://tempo.example.org", 443),
            ("http://tempo.example.org/a:5", 80),
            ("http://[2001:db8::1]:4318", 4318),
            ("https://[2001:db8::1]/", 443),
        ):
            with self.subTest(endpoint):
                self.assertEqual(
                    egress(**{"otlp-endpoint": endpoint}), [[(port, "TCP"), (53, "UDP"), (53, "TCP")]]
                )
        self.assertEqual(egress(), [])
        self.assertEqual(egress(**{"otlp-endpoint": "off"}), [])

    def test_wrong_values_are_refused(self):
        for values, words in REFUSED:
            with self.subTest(words):
                with self.assertRaises(ValueError) as raised:
                    plain.render(values)
                self.assertIn(words, str(raised.exception))

    def test_the_schema_knows_what_values_yaml_has(self):
        def paths(values, at=()):
            for key, value in values.items():
                yield (*at, key)
                if isinstance(value, dict) and key not in ("flags", "requests", "limits"):
                    yield from paths(value, (*at, key))

        def known(schema, at=()):
            for key, inner in schema.get("properties", {}).items():
                yield (*at, key)
                yield from known(inner, (*at, key))

        chart = plain.CHART
        values = yaml.safe_load((chart / "values.yaml").read_text())
        schema = json.loads((chart / "values.schema.json").read_text())
        self.assertEqual(set(paths(values)), set(known(schema)) - {("global",)})

    def test_releases_do_not_touch_each_other(self):
        """Two in one namespace; the second name is as long as Helm allows."""
        values = {"server": PLACE, "client": {"enabled": True}}
        one, long = objects(values, "one"), objects(values, "l" * 53)
        self.assertFalse(set(one) & set(long))
        for (kind, name), document in long.items():
            self.assertLessEqual(len(name), 52 if kind == "StatefulSet" else 63)
            manifests_test.check_schema(document)
        labels = pod(one, "server", "one")["metadata"]["labels"].items()
        for (kind, name), document in one.items():
            spec = document.get("spec", {})
            selector = spec.get("podSelector") or spec.get("selector")
            if kind != "ServiceMonitor" and selector:
                selector = selector.get("matchLabels", selector)
                self.assertEqual(selector.items() <= labels, "server" in name, (kind, name))
        for document in long.values():
            if document["kind"] == "Service":
                self.assertFalse(document["spec"]["selector"].items() <= labels)

    def test_a_change_of_flags_restarts_the_pod(self):
        def annotations(**flags):
            return pod(objects({"server": PLACE | {"flags": flags}}), "server")["metadata"]["annotations"]

        self.assertEqual(annotations(rounds=5), annotations(rounds=5))
        self.assertNotEqual(annotations(rounds=5), annotations(rounds=6))

    def test_flags_reach_the_program_as_they_are(self):
        """A port that nobody has ends the server after it has read all flags."""
        flags = {
            "rounds": 1000000, "fraction": 0.25, "codec": "topk:0.01+ef", "new-run": False,
            "admin-host": 'a"b\\c<d>', "model": "synthetic:5", "min-clients": 2,
        }  # fmt: skip
        found = objects({"server": PLACE | {"flags": flags}})
        text = found["ConfigMap", "tributary-server"]["data"]["server.toml"]
        read = tomllib.loads(text)
        self.assertEqual({key: read[key] for key in flags}, flags)
        self.assertEqual(read["advertise"], "fl.example.org")
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder) / "server.toml"
            config.write_text(text.replace(json.dumps(flags["admin-host"]), '"a.example"'))
            done = subprocess.run(
                [BIN / "fl-server", "--config", config, "--state", folder, "--listen", "nowhere"],
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
        self.assertEqual(done.returncode, 1, done.stderr)  # 2 would be a wrong flag.
        self.assertIn("--listen", done.stderr)

    def test_its_version_is_the_programs(self):
        chart = yaml.safe_load((plain.CHART / "Chart.yaml").read_text())
        header = (SOURCE / "shared" / "base" / "version.hpp").read_text()
        version = re.search(r'software_version = "([0-9.]+)', header)[1]
        self.assertEqual((chart["version"], chart["appVersion"]), (version, version))

    def test_the_notes_say_what_is_still_to_do(self):
        def notes(values):
            return plain.render(values)["NOTES.txt"]

        self.assertIn("create secret generic tributary-server", notes(VALUES["the least"]))
        self.assertNotIn("create secret", notes(VALUES["a secret of one's own"]))
        self.assertIn("enroll --name site-7", notes(VALUES["the least"]))
        self.assertNotIn("enroll", notes(VALUES["a client alone"]))


if __name__ == "__main__":
    unittest.main()
