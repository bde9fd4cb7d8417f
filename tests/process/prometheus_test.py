# SPDX-License-Identifier: Apache-2.0
"""/metrics, the alert rules and the dashboard, as a real Prometheus sees them (Debian's package
prometheus)."""

import json
import re
import shutil
import subprocess
import unittest
import urllib.parse
import urllib.request

from federation import FederationTest, SOURCE, free_port, wait_until

DASHBOARD = SOURCE / "deploy/grafana/tributary.json"
ALERTS = SOURCE / "deploy/prometheus/alerts.yml"
GUIDE = SOURCE / "docs/guide/monitoring.md"
RUN = ("--model", "synthetic:1000", "--codec", "qsgd:8", "--min-clients", 2, "--rounds", 3, "--stay")


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def families(text):
    """The names of a page with their types."""
    return dict(re.findall(r"(?m)^# TYPE (\S+) (\S+)$", text))


def names_in(expression):
    return set(re.findall(r"\b(?:tributary|process)_[a-z_]+", expression))


class Metrics(FederationTest):
    names = ("a", "b")

    def served(self, *flags):
        federation = self.make()
        admin = f"127.0.0.1:{free_port()}"
        federation.server("--new-run", *RUN, "--admin", admin, *flags)
        for name in self.names:
            federation.client(name, "--stay")
        wait_until("three rounds", lambda: federation.rounds_done() == 3)
        wait_until("the metrics have them", lambda: "duration_seconds_count 3" in get(f"http://{admin}/metrics"))
        return federation, admin

    def test_the_guide_lists_what_there_is(self):
        _, admin = self.served("--metrics-by-client")
        page = get(f"http://{admin}/metrics")
        guide = GUIDE.read_text()
        for name in families(page):
            if name != "tributary_accuracy":
                self.assertIn(f"`{name}`", guide)
        there = set(families(page)) | {"tributary_accuracy", "tributary_metric"}
        self.assertLessEqual(names_in(guide), there)
        self.assertIn('tributary_client_updates_total{client="a",outcome="accepted"} 3\n', page)
        self.assertIn('tributary_updates_total{outcome="accepted"} 6\n', page)
        self.assertRegex(page, r'tributary_update_bytes_total\{codec="qsgd:8[^"]*"\} [1-9]')
        for name in re.findall(r"(?m)^\| (Tributary\w+) \|", guide):
            self.assertIn(f"- alert: {name}\n", ALERTS.read_text())

    def test_clients_are_named_only_on_demand_and_counters_begin_with_the_process(self):
        federation, admin = self.served()
        self.assertNotIn("client=", get(f"http://{admin}/metrics"))
        federation.programs[0].kill()
        federation.server(*RUN, "--rounds", 4, "--admin", admin)
        wait_until("the fourth round", lambda: federation.rounds_done() == 4)
        wait_until(
            "only that one is counted",
            lambda: "tributary_round_duration_seconds_count 1\n" in get(f"http://{admin}/metrics"),
        )

    def test_transfers_are_there_while_they_last(self):
        federation = self.make()
        admin = f"127.0.0.1:{free_port()}"
        run = ("--model", "synthetic:100000", "--min-clients", 2, "--rounds", 1, "--stay")
        federation.server("--new-run", *run, "--admin", admin)
        for name in self.names:
            federation.client(name, "--max-upload", "1mbit", "--stay")  # Three seconds.

        def has(*lines):
            page = get(f"http://{admin}/metrics")
            return all(f"tributary_{line}\n" in page for line in lines)

        wait_until("both upload", lambda: has('transfers{direction="up"} 2'))
        self.assertFalse(has("transfer_buffer_bytes 0"))
        idle = [f'queue_length{{queue="{name}"}} 0' for name in ("store", "verdicts", "checks", "traces")]
        wait_until("the round", lambda: federation.rounds_done() == 1)
        wait_until("nothing waits", lambda: has('transfers{direction="up"} 0', "transfer_buffer_bytes 0", *idle))

    @unittest.skipUnless(shutil.which("promtool"), "Debian's package prometheus is not installed")
    def test_a_real_prometheus_takes_page_rules_and_dashboard(self):
        federation, admin = self.served("--metrics-by-client")
        page = get(f"http://{admin}/metrics")
        lint = subprocess.run(
            ["promtool", "check", "metrics"], input=page, capture_output=True, text=True
        )
        self.assertEqual((lint.returncode, lint.stdout, lint.stderr), (0, "", ""))
        rules = subprocess.run(
            ["promtool", "check", "rules", str(ALERTS)], capture_output=True, text=True
        )
        self.assertEqual(rules.returncode, 0, rules.stdout + rules.stderr)

        config = federation.folder / "prometheus.yml"
        config.write_text(
            f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{ALERTS}]\n"
            "scrape_configs:\n  - job_name: tributary\n"
            f'    static_configs: [{{targets: ["{admin}"]}}]\n'
        )
        port = free_port()
        prometheus = federation.start(
            "prometheus",
            [
                *("prometheus", f"--config.file={config}", f"--web.listen-address=127.0.0.1:{port}"),
                f"--storage.tsdb.path={federation.folder}/tsdb",
            ],
        )
        api = f"http://127.0.0.1:{port}/api/v1"

        def query(expression):
            text = get(f"{api}/query?query={urllib.parse.quote(expression)}")
            answer = json.loads(text)
            self.assertEqual(answer["status"], "success", expression)
            return answer["data"]["result"]

        def has_scraped():
            self.assertTrue(prometheus.running(), str(prometheus))
            try:
                return query("tributary_round") and query("rate(process_cpu_seconds_total[1m])")
            except OSError:
                return False

        wait_until("Prometheus has scraped twice", has_scraped)
        self.assertEqual(query("tributary_round")[0]["value"][1], "3")
        loaded = json.loads(get(f"{api}/rules"))["data"]["groups"][0]["rules"]
        self.assertEqual(len(loaded), ALERTS.read_text().count("- alert:"))
        for rule in loaded:
            self.assertEqual(rule.get("lastError", ""), "", rule)
            self.known(rule["query"], page)

        dashboard = json.loads(DASHBOARD.read_text())
        expressions = [t["expr"] for panel in dashboard["panels"] for t in panel["targets"]]
        self.assertGreater(len(expressions), 20)
        for expression in expressions:
            with self.subTest(expression=expression):
                self.known(expression, page)
                query(expression.replace("$instance", ".*").replace("$job", ".*"))

    def known(self, expression, page):
        """Checks that each metric of the expression is on the page; evaluators' ones are not here."""
        known = families(page)
        for name in names_in(expression):
            family = re.sub(r"_bucket$", "", name)
            self.assertIn(family, {*known, "tributary_metric"}, expression)
            if name != family:
                self.assertEqual(known[family], "histogram", expression)


if __name__ == "__main__":
    unittest.main()
