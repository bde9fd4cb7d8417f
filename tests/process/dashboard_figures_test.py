# SPDX-License-Identifier: Apache-2.0
"""The dashboard's views in a headless Chromium, figure by figure beside the rows of the history.
Without Chromium (apt-get install chromium) there is nothing to test with."""

import json
import random
import re
import unittest

from chromium import find_browser
from dashboard_pages import (
    SHOWN,
    Pages,
    human_bytes,
    human_number,
    human_percent,
    human_seconds,
    human_time,
)
from federation import SOURCE

CLIENTS = [f"site-{at:02}" for at in range(12)]
REVOKED = CLIENTS[11]
ROUNDS = 4
BEGAN = 1.7e9
FIRST, SECOND = 3, 4  # The runs that are made up, behind the server's own.
SETTINGS = {
    FIRST: {"codec": "qsgd:8", "lr": 0.1, "momentum": 0.9, "rounds": ROUNDS, "strategy": "fedprox"},
    SECOND: {"codec": "kbit:4", "strategy": "fedprox", "lr": 0.1, "rounds": ROUNDS, "nesterov": True},
}
KEYS = {FIRST: "a" * 16, SECOND: "b" * 16}
NAMES = {run: f"run {run} · lenet · fedprox · {SETTINGS[run]['codec']}" for run in SETTINGS}
REFUSED = "its values are not finite"
EVENTS = (
    ("info", "site-03 is here: trainer"),
    ("notice", "round 2: the deadline passed without site-05"),
    ("warning", f"site-07: update refused: {REFUSED}"),
    ("error", "fl-server ends: the disk is full"),
    ("warning", "nothing is known of this <one>"),
)
AUDIT = (
    ("enrolment", "site-01", "enrolled", "site-01"),
    ("refusal", "", "an enrolment was refused", "a stranger"),
    ("revocation", "site-11", "it is never admitted again", "operator 'root'"),
    ("control", "", "an older server wrote this row", ""),
)
TEXTS = "[...document.querySelectorAll({!r})].map((each) => each.textContent)"
FOOT = {  # For charts, by the axis: the label, and how a value is written.
    "round": ("round", human_number),
    "hours": ("hours of rounds", lambda value: f"{human_number(value, 3)} h"),
    "bytes": ("bytes up and down", human_bytes),
}


def made_up_rounds(run):
    """Rows of two runs for Pages.write(). The second one's figures are others."""
    numbers = random.Random(run)
    rounds, versions, tasks, metrics = [], [(run, 0, "0" * 32)], [], []
    for at in range(1, ROUNDS + 1):
        began = BEGAN + 1e5 * run + 1000 * at
        up, down = numbers.randrange(10**5, 10**7), numbers.randrange(10**5, 10**7)
        ended = began + numbers.uniform(100, 900)
        rounds.append((run, at, at - 1, began, ended, numbers.uniform(0.3, 2), up, down))
        versions.append((run, at, f"{at:032x}"))
        for name, low, high in (("accuracy", 0.2, 0.9), ("loss", 0.5, 2)):
            metrics.append((run, at, "judge", name, numbers.uniform(low, high), 1))
            for client in CLIENTS:
                metrics.append((run, at, client, name, numbers.uniform(low, high), 0))
        for client in CLIENTS:
            state, reason = ("refused", REFUSED) if client == CLIENTS[7] else ("accepted", "")
            train, coding, sending = (numbers.uniform(0.2, 40) for _ in range(3))
            saved = coding + numbers.uniform(0.2, 40)
            ready = train + saved + numbers.uniform(0.2, 40)
            whole = ready + sending + numbers.uniform(0.2, 40)
            task = (run, at, at - 1, client, state, began + numbers.uniform(0, 9), whole)
            task += (numbers.uniform(0.5, 2), numbers.uniform(0.1, 3), ready, train, sending)
            task += (coding, saved)
            codec = SETTINGS[run]["codec"] if client < CLIENTS[6] else "fp16"
            task += (codec, 400_000, numbers.randrange(10_000, 99_000), numbers.uniform(0.01, 0.2))
            tasks.append((*task, reason))
    return rounds, versions, tasks, metrics


@unittest.skipUnless(find_browser(), "there is no Chromium: apt-get install chromium")
class DashboardFigures(Pages):
    names = ("a",)

    def setUp(self):
        self.federation = self.make()
        run = ("--model", "synthetic:100", "--min-clients", 2, "--stay")
        server = self.federation.server("--new-run", *run, "--admin", "127.0.0.1:0")
        self.fill()
        self.page = self.browser()
        self.open(self.page, server)

    def fill(self):
        self.write(
            self.federation,
            (
                "INSERT INTO client (name, certificate_serial, enrolled_at, evaluator, revoked_at)"
                " VALUES (?, '', 1.7e9, 0, ?)",
                [(name, 1.7e9 if name == REVOKED else None) for name in CLIENTS],
            ),
            ("INSERT INTO event (at, level, text) VALUES (1.7e9, ?, ?)", EVENTS),
            ("INSERT INTO audit (at, kind, client, text, who) VALUES (1.7e9, ?, ?, ?, ?)", AUDIT),
        )
        for run, settings in SETTINGS.items():
            rounds, versions, tasks, metrics = made_up_rounds(run)
            self.write(
                self.federation,
                (
                    "INSERT INTO run (id, key, model, seed, rounds_total, config_json, state,"
                    " started_at, queued) VALUES (?, ?, 'lenet', '1', 9, ?, 'finished', ?, 0)",
                    [(run, KEYS[run], json.dumps(settings), BEGAN + 1e5 * run)],
                ),
                (
                    "INSERT INTO round (run_id, round, base_version, started_at, target,"
                    " population, ended_at, train_loss, bytes_up, bytes_down)"
                    " VALUES (?, ?, ?, ?, 11, 1, ?, ?, ?, ?)",
                    rounds,
                ),
                (
                    "INSERT INTO checkpoint (run_id, version, made_at, file, bytes, digest,"
                    " delta_file, delta_bytes) VALUES (?, ?, 1.7e9, 'x', 30000, ?, '', 0)",
                    versions,
                ),
                (
                    "INSERT INTO task (run_id, round, base_version, client, state, offered_at,"
                    " decided_at, seconds, loss, norm, ready_seconds, train_seconds,"
                    " upload_seconds, encode_seconds, save_seconds, codec, raw_bytes, update_bytes, nmse, reason,"
                    " examples, steps, codec_reason, spool_file) VALUES (?, ?, ?, ?, ?, ?6, ?6 + ?7,"
                    " ?7, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 10, 10, '', 'x')",
                    tasks,
                ),
                (
                    "INSERT INTO metric (run_id, version, client, name, value, evaluator,"
                    " examples, at) VALUES (?, ?, ?, ?, ?, ?, 100, 1.7e9)",
                    metrics,
                ),
            )

    def choose(self, axis):
        self.page.run(f"{SHOWN}.querySelector('[value={axis}]').click()")

    def series(self, run):
        """The rounds of a run by column, with the values of the axes."""
        names = "round seconds clients_offered clients_accepted bytes_up bytes_down train_loss"
        names = [*names.split(), "eval_loss", "eval_accuracy"]
        rows = self.federation.query(
            f"SELECT {', '.join(names)} FROM round_summary WHERE run_id = ? ORDER BY round", run
        )
        columns = dict(zip(names, zip(*rows)))
        hours = total = 0
        columns = columns or {name: () for name in names}  # Without a round.
        columns["hours"], columns["bytes"] = [], []
        for seconds, up, down in zip(*(columns[n] for n in ("seconds", "bytes_up", "bytes_down"))):
            hours, total = hours + seconds / 3600, total + up + down
            columns["hours"].append(hours)
            columns["bytes"].append(total)
        return columns

    def expect_chart(self, title, lines, axis, write):
        """`lines`: name and values of each, and the values below them."""
        label, write_x = FOOT[axis]
        panel = self.panel(title)
        self.page.wait_for(title, f"{panel}?.querySelector('.readout')?.textContent")
        self.page.run(f"{panel}.querySelector('details').open = true")
        rows = [
            (name, write_x(at), write(value))
            for name, values, below in lines
            for at, value in reversed(list(zip(below, values)))
        ]
        self.expect_rows(self.page, title, ["Line", "At", "Value"], rows)
        if any(below is not lines[0][2] for _, _, below in lines):
            return  # The slider reads what is nearest.
        last = [(name, write(values[-1])) for name, values, _ in lines]
        said = " · ".join(f"{name} {text}" if len(last) > 1 else text for name, text in last)
        readout = f"{label} {write_x(lines[0][2][-1])}: {said}"
        self.page.wait_for(readout, f"{panel}.querySelector('.readout').textContent === {readout!r}")

    def test_metrics_by_rounds_hours_and_bytes(self):
        self.show(self.page, "metrics", FIRST)
        series = self.series(FIRST)
        for axis in ("hours", "bytes", "round"):
            self.choose(axis)

            def lines(*columns):
                return [(name, series[column], series[axis]) for name, column in columns]

            self.expect_chart(
                "Main metric", lines(("accuracy", "eval_accuracy")), axis, human_percent
            )
            loss = lines(("training", "train_loss"), ("evaluation", "eval_loss"))
            self.expect_chart("Loss", loss, axis, human_number)
            counts = lines(("asked", "clients_offered"), ("accepted", "clients_accepted"))
            self.expect_chart("Updates", counts, axis, human_number)
            self.expect_chart("Time", lines(("seconds", "seconds")), axis, human_seconds)
        self.assertEqual(self.page.errors, [])

    def test_bytes_by_round_and_by_codec(self):
        self.show(self.page, "bytes", FIRST)
        series = self.series(FIRST)
        ways = [(way, series[f"bytes_{way}"], series["round"]) for way in ("up", "down")]
        self.expect_chart("By round", ways, "round", human_bytes)
        first, last = series["eval_accuracy"][0], series["eval_accuracy"][-1]
        # Each codec is in each round, so all traffic is its.
        point = human_bytes(series["bytes"][-1] / (100 * abs(last - first)))
        expected = []
        for codec, count, sent, raw, error, coding, saved in self.federation.query(
            "SELECT codec, count(*), sum(update_bytes), sum(raw_bytes), avg(nmse),"
            " avg(encode_seconds), avg(save_seconds) FROM task WHERE run_id = ? AND state = 'accepted'"
            " GROUP BY codec ORDER BY codec",
            FIRST,
        ):
            smaller = f"{human_number(raw / sent, 3)}×"
            figures = (human_bytes(sent), human_bytes(raw), smaller, human_number(error, 3))
            times = (human_seconds(coding), human_seconds(saved))
            expected.append((codec, str(count), *figures, *times, point))
        labels = ["Codec", "Updates", "Sent", "In fp32", "Smaller by", "Coding error"]
        labels += ["Coding took", "With saving", "Bytes for each point"]
        self.expect_rows(self.page, "Updates by codec", labels, expected)

    def test_runs_side_by_side(self):
        self.show(self.page, "runs")
        expected = []
        for run, key, model, method, codec, state, total, began in self.federation.query(
            "SELECT id, key, model, json_extract(config_json, '$.strategy'),"
            " json_extract(config_json, '$.codec'), state, rounds_total, started_at FROM run"
            " ORDER BY id DESC"
        ):
            series = self.series(run)
            last = human_percent(series["eval_accuracy"][-1]) if run in SETTINGS else "–"
            row = (f"run {run}", model, method, codec, state, f"{len(series['hours'])} of {total}")
            row += (human_seconds(sum(series["seconds"])), human_bytes(series["bytes"][-1] if series["bytes"] else 0))
            expected.append((*row, f"accuracy {last}", human_time(began), key))
        labels = ["Run", "Model", "Method", "Codec", "State", "Rounds", "Took", "Bytes", "Metric"]
        labels += ["Began", "Key"]
        self.expect_rows(self.page, "All runs", labels, expected)

        labels = ["Setting", NAMES[SECOND], NAMES[FIRST]]
        codec = ("codec", "kbit:4", "qsgd:8")
        others = [("momentum", "–", "0.9"), ("nesterov", "true", "–")]
        self.expect_rows(self.page, "Settings", labels, [codec, *others])
        self.page.run("document.querySelector('#all-settings').click()")
        every = [codec, ("lr", "0.1", "0.1"), *others, ("rounds", str(ROUNDS), str(ROUNDS))]
        every.append(("strategy", "fedprox", "fedprox"))
        self.expect_rows(self.page, "Settings", labels, every)

        both = [(NAMES[run], self.series(run)) for run in (SECOND, FIRST)]
        for axis in ("bytes", "hours"):
            self.choose(axis)
            lines = [(key, series["eval_accuracy"], series[axis]) for key, series in both]
            self.expect_chart("Metric", lines, axis, human_percent)
        # The list of runs to choose from has the same names.
        choices = self.page.run(TEXTS.format("#run option"))
        self.assertEqual(choices[:2], [NAMES[SECOND], NAMES[FIRST]])
        self.assertEqual(self.page.errors, [])

    def test_a_round_client_by_client(self):
        self.show(self.page, "round", FIRST)
        self.expect_timeline(ROUNDS)
        self.expect_spread(ROUNDS)
        self.page.run(f"{SHOWN}.querySelector('button').click()")  # "Previous round".
        self.expect_timeline(ROUNDS - 1)
        self.expect_spread(ROUNDS - 1)
        self.assertEqual(self.page.errors, [])

    def expect_timeline(self, number):
        ((began, took),) = self.federation.query(
            "SELECT started_at, ended_at - started_at FROM round WHERE run_id = ? AND round = ?",
            *(FIRST, number),
        )
        about = f"Round {number} began at {human_time(began)} and took {human_seconds(took)};"
        self.page.wait_for(
            about, f"{self.panel('Timeline')}?.textContent.includes({json.dumps(about)})"
        )
        rows, bars = [], []
        for client, state, whole, ready, train, coding, saved, upload, sent, codec, reason in (
            self.federation.query(
                "SELECT client, state, seconds, ready_seconds, train_seconds, encode_seconds,"
                " save_seconds, upload_seconds, update_bytes, codec, reason FROM task"
                " WHERE run_id = ? AND round = ? ORDER BY id",
                *(FIRST, number),
            )
        ):
            rows.append((client, state, human_seconds(whole), human_bytes(sent), codec, reason))
            parts = {
                "download and preparing": ready - train - saved,
                "training": train,
                "coding": coding,
                "saving": saved - coding,
                "upload": upload,
                "waiting and checking": whole - ready - upload,
            }
            bars.append(", ".join(f"{name} {human_seconds(s)}" for name, s in parts.items()))
        labels = ["Client", "Verdict", "Took", "Sent", "Codec", "Why"]
        self.expect_rows(self.page, "Timeline", labels, rows)
        self.assertEqual(self.page.run(
            f"[...{SHOWN}.querySelectorAll('.spans')].map((each) => each.ariaLabel)"), bars)

    def expect_spread(self, number):
        """Eleven updates count, in a group of five and one of six; the metrics are of twelve."""
        tasks = f"FROM task WHERE run_id = {FIRST} AND round = {number} AND state = 'accepted'"
        metrics = f"FROM metric WHERE run_id = {FIRST} AND version = {number} AND evaluator = 0"
        rows = []
        for name, source, write in (
            ("training loss", f"loss {tasks}", human_number),
            ("norm of the update", f"norm {tasks}", human_number),
            ("training time", f"train_seconds {tasks}", human_seconds),
            ("coding error", f"nmse {tasks}", human_number),
            ("upload speed", f"update_bytes / upload_seconds {tasks}",
             lambda value: f"{human_bytes(round(value))}/s"),
            ("bytes of the update", f"update_bytes {tasks}", human_bytes),
            ("trainers' accuracy", f"value {metrics} AND name = 'accuracy'", human_percent),
            ("trainers' loss", f"value {metrics} AND name = 'loss'", human_number),
        ):  # fmt: skip
            values = [value for (value,) in self.federation.query(f"SELECT {source} ORDER BY 1")]
            half = len(values) // 2
            groups = values[:half], values[half:]
            means = [write(sum(group) / len(group)) for group in groups]
            rows.append((name, str(len(values)), "  ·  ".join(means)))
        labels = ["Figure", "Clients", "From the lowest to the highest group"]
        self.expect_rows(self.page, "Spread between clients", labels, rows)

    def set(self, field, value):
        self.page.run(
            f"{{ const field = document.querySelector('#{field}');"
            f" field.value = {json.dumps(value)};"
            " for (const kind of ['input', 'change']) field.dispatchEvent(new Event(kind)); }"
        )

    def test_events_by_level_and_text_with_cause_and_remedy(self):
        source = (SOURCE / "server/admin/pages/remedies.cpp").read_text()
        found = re.findall(r"Remedy\{(\s*\"[^}]*)\}", source)
        remedies = [re.findall(r'"([^"]*)"', re.sub(r'"\s*"', "", each)) for each in found]
        self.assertGreater(len(remedies), 10)
        self.show(self.page, "log")
        levels = ["info", "notice", "warning", "error"]
        for level, text in *((level, "") for level in levels), ("info", "The DEADLINE"):
            self.set("log-level", level)
            self.set("log-text", text)
            rows = []
            for of, what in self.federation.query(
                "SELECT level, text FROM event WHERE instr(lower(text), ?) ORDER BY id DESC",
                text.lower(),
            ):
                fitting = (each[1:] for each in remedies if each[0] in what)
                if levels.index(of) >= levels.index(level):
                    rows.append((of, what, *next(fitting, ["", ""])))
            self.expect_rows(
                self.page, "Events", ["Level", "What", "Cause", "What to do"], rows
            )
        self.assertEqual(len(rows), 1)
        self.assertNotEqual(rows[0][2], "")
        self.assertEqual(self.page.errors, [])

    def test_security_events_by_kind(self):
        self.show(self.page, "log")
        for kind in ("", *(kind for kind, *_ in AUDIT), "renewal"):
            self.set("log-kind", kind)
            rows = self.federation.query(
                "SELECT kind, iif(who = '', '–', who), iif(client = who, '', client), text FROM audit"
                " WHERE ?1 IN ('', kind) ORDER BY id DESC",
                kind,
            )
            self.expect_rows(self.page, "Security", ["Kind", "Who", "Client", "What"], rows)

    def test_members_by_name(self):
        self.show(self.page, "fleet")
        for part in ("", "SITE-1", "nobody"):
            self.set("fleet-filter", part)
            rows = [
                (name, *(("revoked", "nothing: it was revoked") if name == REVOKED
                         else ("away", "must connect")))
                for name in sorted([*self.names, *CLIENTS])
                if part.lower() in name
            ]  # fmt: skip
            self.expect_rows(self.page, "Members", ["Name", "State", "Next"], rows)
        self.page.wait_for(
            "the number", f"{SHOWN}.textContent.includes('{len(CLIENTS) + 1} members in all.')"
        )


if __name__ == "__main__":
    unittest.main()
