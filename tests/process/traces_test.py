# SPDX-License-Identifier: Apache-2.0
"""Traces of rounds, as an OpenTelemetry collector gets them: their JSON, their values beside the
history's, and collectors that are slow, away, or say no. Rounds go on in all cases."""

import json
import os
import signal
import subprocess
import time
import unittest
import urllib.request

from federation import FederationTest, free_port, wait_until

try:
    import collector as otlp
except ImportError:
    otlp = None

RUN = ("--model", "synthetic:1000", "--codec", "qsgd:8", "--min-clients", 2)
WAITING_MAX = 256  # limits::trace_rounds_max.
FLUSH_MAX_S = 5  # limits::otlp_flush_max.
STATUS_ERROR = 2  # The value of OTLP's Status.StatusCode.
PARTS = ["download", "training", "coding", "residual", "digest", "sync", "files", "upload", "waiting"]


def get(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def children(spans, parent):
    return [span for span in spans if span.parent_span_id == parent.span_id]


def seconds(span):
    return (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9


@unittest.skipUnless(otlp, "PyPI's opentelemetry-proto is not installed")
class Traces(FederationTest):
    names = ("site-a", "site-b", "site-c")  # The last one is for tests that start it themselves.

    def collector(self, *arguments, **more):
        made = otlp.Collector(*arguments, **more)
        self.addCleanup(made.close)
        return made

    def setenv(self, **variables):
        for name, value in variables.items():
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name, None)

    def start(self, rounds, *flags, stay=True):
        """A federation with a run of so many rounds. Returns it, its server, and its admin pages."""
        federation = self.make()
        admin = f"127.0.0.1:{free_port()}"
        more = ("--stay",) if stay else ()
        server = federation.server(
            "--new-run", *RUN, "--rounds", rounds, "--admin", admin, *more, *flags
        )
        for name in self.names[:2]:
            federation.client(name, *more)
        return federation, server, f"http://{admin}"

    def figure(self, admin, name):
        """A metric's value on /metrics."""
        for line in get(f"{admin}/metrics").splitlines():
            if line.startswith(f"tributary_{name} "):
                return float(line.split()[1])
        raise AssertionError(f"/metrics has no tributary_{name}")

    def traces_of_log(self, server):
        """The log's lines about traces, and its warnings."""
        lines = server.stderr().splitlines()
        return "\n".join(line for line in lines if "trace" in line or " warning " in line)

    def waiting(self, admin):
        return self.figure(admin, 'queue_length{queue="traces"}')

    def round_seconds(self, federation):
        return [row[0] for row in federation.query("SELECT seconds FROM round_summary ORDER BY round")]

    # What a trace has ----------------------------------------------------------------------------

    def test_each_round_is_a_trace_with_the_dashboards_figures(self):
        collector = self.collector()
        federation, server, admin = self.start(3, "--otlp-endpoint", collector.url)
        wait_until("three traces", lambda: len(collector.rounds()) == 3)
        spans = collector.spans()
        roots = collector.rounds()
        self.assertEqual(len({root.trace_id for root in roots.values()}), 3)
        by_id = {(span.trace_id, span.span_id): span for span in spans}
        self.assertEqual(len(by_id), len(spans))
        for span in spans:
            if span.parent_span_id:
                self.assertIn((span.trace_id, span.parent_span_id), by_id)
        digests = federation.digests()
        for number, root in roots.items():
            self.check_round(number, root, children(spans, root), spans, admin, digests[number])
        _, path, headers, message = collector.requests[0]
        self.assertEqual(path, "/v1/traces")
        self.assertEqual(headers["Content-Type"], "application/json")
        resource = otlp.values(message.resource_spans[0].resource.attributes)
        self.assertEqual(resource["service.name"], "fl-server")
        self.assertNotIn("site-", "".join(str(request[3]) for request in collector.requests))
        self.assertEqual(self.figure(admin, "trace_spans_sent_total"), len(spans))
        self.assertEqual(self.figure(admin, "trace_rounds_dropped_total"), 0)
        self.assertEqual(self.waiting(admin), 0)
        self.assertIn(f"traces of rounds go to {collector.url}/v1/traces", server.stderr())

    def check_round(self, number, root, own, spans, admin, digest):
        page = json.loads(get(f"{admin}/api/updates?round={number}"))
        self.assertEqual(root.name, f"round {number}")
        told = otlp.values(root.attributes)
        self.assertEqual(told["tributary.method"], "fedavg")
        self.assertEqual(told["tributary.codec"], "qsgd:8")
        self.assertEqual(told["tributary.cohort"], 2)
        self.assertEqual(told["tributary.accepted"], 2)
        self.assertEqual(told["tributary.refused"], 0)
        self.assertEqual(told["tributary.digest"], digest)
        at = page["round"]
        self.assertAlmostEqual(root.start_time_unix_nano / 1e9, at["started_at"], places=5)
        aggregation, store = (
            next(span for span in own if span.name == name) for name in ("aggregation", "store")
        )
        self.assertAlmostEqual(store.start_time_unix_nano / 1e9, at["ended_at"], places=5)
        self.assertEqual(aggregation.end_time_unix_nano, store.start_time_unix_nano)
        self.assertEqual(store.end_time_unix_nano, root.end_time_unix_nano)
        self.assertGreater(seconds(aggregation), 0)
        self.assertGreater(seconds(store), 0)
        tasks = {otlp.values(span.attributes)["tributary.task"]: span for span in own if span.name == "task"}
        self.assertEqual(set(tasks), {update["task"] for update in page["updates"]})
        for update in page["updates"]:
            task = tasks[update["task"]]
            self.assertEqual(task.status.code, 0)
            self.assertAlmostEqual(seconds(task), update["decided_at"] - update["offered_at"], places=5)
            self.assertEqual(
                otlp.values(task.attributes)["tributary.update.bytes"], update["update_bytes"]
            )
            parts = {span.name: span for span in children(spans, task)}
            self.assertLessEqual(set(parts), set(PARTS))
            whole = sum(map(seconds, parts.values()))
            self.assertAlmostEqual(whole, seconds(task), places=5)
            if "waiting" in parts:  # Then nothing was cut off.
                for name, column in (
                    ("training", "train_seconds"),
                    ("coding", "encode_seconds"),
                    ("upload", "upload_seconds"),
                ):
                    if update[column] > 0:
                        self.assertAlmostEqual(seconds(parts[name]), update[column], places=5)
                rest = update["save_seconds"] - update["encode_seconds"]
                for name in "residual", "digest", "sync":
                    if update[f"{name}_seconds"] > 0:
                        part = seconds(parts[name])
                        self.assertAlmostEqual(part, update[f"{name}_seconds"], places=5)
                    rest -= update[f"{name}_seconds"]
                self.assertGreater(rest, 0)
                self.assertAlmostEqual(seconds(parts["files"]), rest, places=5)

    def test_the_environment_says_where_and_clients_are_named_on_demand(self):
        collector = self.collector()
        self.setenv(
            OTEL_EXPORTER_OTLP_ENDPOINT=f"{collector.url}/base",
            OTEL_EXPORTER_OTLP_HEADERS="X-Team=a%20b",
            OTEL_SERVICE_NAME="coordinator",
        )
        # Waiting rounds are sent before the process ends.
        _, server, _ = self.start(5, "--metrics-by-client", stay=False)
        self.expect_exit(server)
        self.assertEqual(set(collector.rounds()), {1, 2, 3, 4, 5})
        _, path, headers, message = collector.requests[0]
        self.assertEqual(path, "/base/v1/traces")
        self.assertEqual(headers["X-Team"], "a b")
        resource = otlp.values(message.resource_spans[0].resource.attributes)
        self.assertEqual(resource["service.name"], "coordinator")
        named = [otlp.values(span.attributes).get("tributary.client") for span in collector.spans()]
        self.assertEqual(sorted(filter(None, named)), ["site-a"] * 5 + ["site-b"] * 5)

    def test_the_task_of_a_client_that_dies_has_failed_and_says_why(self):
        for mode, outcome, why in (
            ("sync", "late", "the round closed without it"),
            # However many versions are made within that second.
            ("async:buffer=2,late=100000", "lost", "no update within 1 s"),
        ):
            with self.subTest(mode):
                collector = self.collector()
                federation = self.make(outcome)
                # Rounds of a million values leave the exporter time.
                server = federation.server(
                    *("--new-run", *RUN, "--model", "synthetic:1000000", "--rounds", 100000),
                    *("--mode", mode, "--deadline", 1, "--metrics-by-client"),
                    *("--otlp-endpoint", collector.url),
                )
                for name in self.names[:2]:
                    federation.client(name)
                dying = federation.client("site-c", failpoint="update.trained")
                self.assertEqual(dying.wait(), -signal.SIGKILL)

                def failed():
                    return [
                        span
                        for span in collector.spans()
                        if otlp.values(span.attributes).get("tributary.client") == "site-c"
                    ]

                (task,) = wait_until("the trace of its task", failed)
                self.assertEqual(task.name, "task")
                self.assertEqual(task.status.code, STATUS_ERROR)
                self.assertEqual(task.status.message, why)
                told = otlp.values(task.attributes)
                self.assertEqual(told["tributary.outcome"], outcome)
                self.assertNotIn("tributary.update.bytes", told)
                self.assertGreaterEqual(seconds(task), 0.9)
                # The round counted without it, and is no failure; nor are the others' tasks.
                trace = [span for span in collector.spans() if span.trace_id == task.trace_id]
                (root,) = [span for span in trace if not span.parent_span_id]
                self.assertEqual(root.span_id, task.parent_span_id)
                self.assertEqual(root.status.code, 0)
                self.assertEqual(otlp.values(root.attributes)[f"tributary.{outcome}"], 1)
                self.assertEqual(otlp.values(root.attributes)["tributary.accepted"], 2)
                others = [
                    span.status.code
                    for span in children(trace, root)
                    if span.name == "task" and span.span_id != task.span_id
                ]
                self.assertEqual(others, [0, 0])
                server.kill()

    # Collectors that misbehave -------------------------------------------------------------------

    def test_a_collector_that_never_answers_costs_a_round_nothing(self):
        collector = self.collector(lambda number: None)
        federation, server, admin = self.start(30, "--otlp-endpoint", collector.url)
        wait_until("thirty rounds", lambda: federation.rounds_done() == 30)
        # One request waits ten seconds for its answer. Had a single round waited for it, they would take
        # longer together.
        self.assertLess(sum(self.round_seconds(federation)), 10)
        self.assertLessEqual(len(collector.requests), 2)
        self.assertGreaterEqual(self.waiting(admin) + 2, 1)
        begin = time.monotonic()
        server.signal(signal.SIGTERM)
        self.expect_exit(server)
        took = time.monotonic() - begin
        self.assertLess(took, FLUSH_MAX_S + 10)
        self.assertRegex(server.stderr(), "traces of the last [0-9]+ rounds were not sent")

    def test_nothing_grows_while_the_collector_is_away_and_the_newest_come_later(self):
        port = free_port()
        federation, server, admin = self.start(300, "--otlp-endpoint", f"http://127.0.0.1:{port}")
        wait_until("300 rounds", lambda: federation.rounds_done() == 300)
        self.assertLessEqual(self.waiting(admin), WAITING_MAX)
        dropped = self.figure(admin, "trace_rounds_dropped_total")
        # One batch is in the exporter's hand, or was when the queue ran over.
        self.assertGreaterEqual(dropped, 1)
        self.assertLess(dropped, 300 - WAITING_MAX + 1)
        # It is said at the next attempt; between two there are up to 15 seconds.
        server.wait_for("is dropped, and others may be")
        log = self.traces_of_log(server)
        self.assertEqual(log.count("does not take them"), 1, log)
        self.assertEqual(log.count("is dropped, and others may be"), 1, log)
        self.assertEqual(self.figure(admin, "trace_spans_sent_total"), 0)
        # It comes back at its place.
        late = self.collector(port=port)
        wait_until("the queue is empty", lambda: self.waiting(admin) == 0 and 300 in late.rounds())
        self.assertEqual(len(late.rounds()), 300 - dropped)
        server.wait_for("takes them again")
        self.assertLess(max(late.bytes), 1 << 20)

    def test_retry_after_is_kept_and_nothing_comes_twice(self):
        answers = {1: (503, {"Retry-After": "3"}), 2: (429, {})}
        collector = self.collector(lambda number: answers.get(number, (200, {})))
        federation, server, admin = self.start(4, "--otlp-endpoint", collector.url)
        wait_until("four rounds", lambda: federation.rounds_done() == 4)
        wait_until("all are sent", lambda: len(collector.requests) > 2 and 4 in collector.rounds(2))
        first, second, third = [request[0] for request in collector.requests[:3]]
        self.assertGreaterEqual(second - first, 3)
        self.assertGreater(third - second, 0.04)
        self.assertEqual(set(collector.rounds(2)), {1, 2, 3, 4})
        self.assertEqual(collector.requests[0][3], collector.requests[2][3])
        self.assertEqual(self.figure(admin, "trace_rounds_dropped_total"), 0)
        server.wait_for("takes them again")  # It says so after the collector has noted the request.
        log = self.traces_of_log(server)
        self.assertEqual(log.count("does not take them: HTTP status 503"), 1, log)
        self.assertEqual(log.count("takes them again"), 1, log)

    def test_what_is_refused_is_dropped_and_counted(self):
        collector = self.collector(lambda number: (400, {}) if number == 1 else (200, {}))
        federation, server, admin = self.start(1, "--otlp-endpoint", collector.url)
        wait_until("it is dropped", lambda: self.figure(admin, "trace_rounds_dropped_total") == 1)
        federation.server_command("queue", *RUN, "--rounds", "1")
        wait_until("the next run's round", lambda: len(collector.requests) == 2)
        self.assertEqual(len(collector.rounds(1)), 1)
        self.assertIn("does not take them: HTTP status 400", server.stderr())

    # https ---------------------------------------------------------------------------------------

    def certificate(self, name):
        folder = self.root / self.id()
        folder.mkdir(parents=True, exist_ok=True)
        key, certificate = folder / f"{name}-key.pem", folder / f"{name}.pem"
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
                *("-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=collector"),
                *("-addext", f"subjectAltName={name}"),
            ],
            check=True,
            capture_output=True,
        )
        return certificate, key

    def test_https_takes_a_certificate_for_the_host_of_a_trusted_authority_only(self):
        right = self.certificate("IP:127.0.0.1")
        other = self.certificate("DNS:elsewhere.example")
        for what, shown, trusted, words in (
            ("trusted", right, right, None),
            ("unknown", right, other, "self-signed certificate"),
            ("another host", other, other, "mismatch"),
        ):
            with self.subTest(what):
                collector = self.collector(certificate=shown)
                os.environ["OTEL_EXPORTER_OTLP_CERTIFICATE"] = str(trusted[0])
                self.addCleanup(os.environ.pop, "OTEL_EXPORTER_OTLP_CERTIFICATE", None)
                federation = self.make(what.replace(" ", "-"))
                server = federation.server(
                    "--new-run", *RUN, "--rounds", 2, "--otlp-endpoint", collector.url
                )
                for name in self.names[:2]:
                    federation.client(name)
                self.expect_exit(server)
                if words is None:
                    self.assertEqual(set(collector.rounds()), {1, 2}, server.stderr())
                else:
                    self.assertEqual(collector.requests, [])
                    self.assertRegex(server.stderr(), f"certificate of .* is not accepted: .*{words}")

    def test_a_wrong_address_ends_the_start_and_leaves_nothing_behind(self):
        federation = self.make()
        state = federation.folder / "none"
        code, _, err = federation.command(
            "fl-server", "--state", state, "--otlp-endpoint", "collector:4318"
        )
        self.assertEqual(code, 1)
        self.assertIn("--otlp-endpoint: this is not http[s]://HOST", err)
        self.assertFalse(state.exists())
        self.setenv(OTEL_EXPORTER_OTLP_HEADERS="secret")
        code, _, err = federation.command(
            "fl-server", "--state", state, "--otlp-endpoint", "http://127.0.0.1:1"
        )
        self.assertEqual(code, 1)
        self.assertIn("OTEL_EXPORTER_OTLP_HEADERS is not NAME=VALUE", err)
        self.assertNotIn("secret", err)


if __name__ == "__main__":
    unittest.main()
