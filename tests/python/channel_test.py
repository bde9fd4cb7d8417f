# SPDX-License-Identifier: Apache-2.0
"""Trainers of the package tributary_fl, written with numpy, against a fake fl-client."""

import contextlib
import dataclasses
import importlib.util
import io
import json
import os
import pathlib
import re
import signal
import socket
import sys
import tempfile
import textwrap
import time
import unittest

import numpy as np

import fake_agent
from fake_agent import AgentWithProcess, agent_for, all_settings

sys.path.insert(0, str(fake_agent.PACKAGE))

import tributary_fl as fl
from tributary_fl import _tensors
from tributary_fl.numpy import Trainer


class Adds(Trainer):
    """Adds lr to all weights in each step; its loss is the number of the round."""

    def __init__(self, weights=None, **options):
        weights = weights or {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float64)}
        super().__init__(weights, 10, 4, **options)
        self.at_step = lambda task, step: None

    def train(self, weights, task):
        step = 0
        while task.may_begin(step, 5):
            task.progress(step, 5, lambda: 0.5)
            self.at_step(task, step)
            for array in weights.values():
                array += task.settings.lr
            step += 1
        return fl.TrainReport(step, float(task.round))

    def evaluate(self, weights, task):
        mean = float(np.mean([array.mean() for array in weights.values()]))
        return fl.EvalReport(4, mean, {"mean": mean, "f1": (0.5, 8), "none": (0.0, 0)})


class Answers(unittest.TestCase):
    def test_hello_says_what_the_trainer_has(self):
        class WithGradient(Adds):
            def gradient(self, weights, task):
                return weights

        metrics = ["accuracy", fl.MetricInfo("perplexity", "lower", "log_mean")]
        metrics += ["F1 (macro)", fl.MetricInfo("miss", "lower")]
        with agent_for(WithGradient(metrics=metrics, supports=["proximal"], frozen="ab")) as agent:
            said = agent.hello()
        self.assertEqual(
            said["tensors"],
            [
                {"name": "w", "shape": [2, 3], "dtype": "F32"},
                {"name": "b", "shape": [3], "dtype": "F64"},
            ],
        )
        self.assertEqual((said["train_examples"], said["holdout_examples"]), (10, 4))
        self.assertEqual(
            said["metrics"],
            [
                {"name": "accuracy"},
                {"name": "perplexity", "better": "lower", "combine": "log_mean"},
                {"name": "F1 (macro)"},
                {"name": "miss", "better": "lower"},
            ],
        )
        self.assertEqual(said["supports"], ["proximal", "gradient", "initial"])
        self.assertEqual(said["frozen"], "ab")

    def test_training_changes_weights_in_their_number_formats(self):
        start = {"w": np.ones((2, 3), np.float32), "b": np.full(3, 0.1)}
        with agent_for(Adds()) as agent:
            agent.hello()
            out, done = agent.train(start, lr=0.25, epochs=2, round=7)
            again, _ = agent.train(start, lr=0.25, epochs=2, round=8)
        self.assertEqual((done["steps"], done["loss"]), (10, 7))
        np.testing.assert_array_equal(out["w"], np.full((2, 3), 3.5, np.float32))
        self.assertEqual(out["b"].dtype, np.float64)
        np.testing.assert_allclose(out["b"], 2.6, rtol=1e-15)
        np.testing.assert_array_equal(again["w"], out["w"])
        self.assertEqual(agent.progress[0]["loss"], 0.5)

    def test_a_trainer_gets_the_number_format_that_it_asks_for(self):
        seen = []

        class Doubles(Adds):
            def train(self, weights, task):
                seen.extend(weights.values())
                weights["w"] = weights["w"] + 1 / 3
                return fl.TrainReport(1, 0.5)

            def evaluate(self, weights, task):
                seen.extend(weights.values())
                return fl.EvalReport(4, 0.5)

            def gradient(self, weights, task):
                seen.extend(weights.values())
                return weights

        # Behind three float32 a float64 would begin at an odd place.
        start = {"b": np.ones(3, np.float32), "w": np.ones((2, 3), np.float64)}
        for wanted in np.float64, np.float32, None:
            seen.clear()
            with agent_for(Doubles(start, dtype=wanted)) as agent:
                said = agent.hello()
                self.assertEqual([t["dtype"] for t in said["tensors"]], ["F32", "F64"])
                out, _ = agent.train(start)
                agent.ask("evaluate", start)
                agent.ask("gradient", start, settings={})
            kinds = [wanted] * 2 if wanted else [np.float32, np.float64]
            self.assertEqual([array.dtype for array in seen], kinds * 3)
            self.assertTrue(all(a.flags.aligned and a.flags.c_contiguous for a in seen))
            self.assertTrue(all(array.flags.writeable for array in seen))
            np.testing.assert_allclose(out["w"], 4 / 3, rtol=1e-7 if wanted is np.float32 else 1e-15)

    @unittest.skipUnless(importlib.util.find_spec("sklearn"), "needs scikit-learn")
    def test_a_model_of_scikit_learn_trains_on_the_arrays_that_it_gets(self):
        from sklearn.linear_model import SGDClassifier

        x = np.random.default_rng(1).standard_normal((200, 4))
        y = (x[:, 0] > 0).astype(int)
        model = SGDClassifier(random_state=1).fit(x, y)

        class Linear(Adds):
            def train(self, weights, task):
                model.coef_, model.intercept_ = weights["coef"], weights["intercept"]
                model.partial_fit(x, y)
                weights["coef"], weights["intercept"] = model.coef_, model.intercept_
                return fl.TrainReport(1, 1 - model.score(x, y))

        start = {"coef": np.zeros((1, 4), np.float32), "intercept": np.zeros(1, np.float32)}
        with agent_for(Linear(start, dtype=np.float64)) as agent:
            agent.hello()
            out, done = agent.train(start)
        self.assertLess(done["loss"], 0.1)
        self.assertGreater(out["coef"][0, 0], abs(out["coef"][0, 1:]).max())

    def test_steps_replace_epochs_and_seconds_end_them(self):
        trainer = Adds()
        trainer.at_step = lambda task, step: time.sleep(0.05)
        start = {"w": np.zeros((2, 3)), "b": np.zeros(3)}
        with agent_for(trainer) as agent:
            agent.hello()
            self.assertEqual(agent.train(start, steps=3)[1]["steps"], 3)
            self.assertEqual(agent.train(start, epochs=0, seconds=0.001)[1]["steps"], 1)
            self.assertIn(agent.train(start, epochs=0, seconds=0.2)[1]["steps"], (2, 3, 4))

    def test_evaluate_and_initial(self):
        with agent_for(Adds({"w": np.full(4, 2, np.float32)})) as agent:
            agent.hello()
            done = agent.ask("evaluate", {"w": np.full(4, 3)})
            agent.ask("initial", seed=2**64 - 1)
            np.testing.assert_array_equal(agent.out()["w"], np.full(4, 2, np.float32))
        self.assertEqual((done["examples"], done["loss"]), (4, 3))
        # A metric without any weight says nothing.
        expected = {"mean": 3, "f1": {"value": 0.5, "weight": 8}}
        self.assertEqual(done["metrics"], expected)

    def test_what_raises_is_an_error_with_its_type_and_the_next_request_is_served(self):
        trainer = Adds()
        start = {"w": np.zeros((2, 3)), "b": np.zeros(3)}

        def fail(task, step):
            raise FileNotFoundError("part-1.npz")

        with agent_for(trainer) as agent:
            agent.hello()
            trainer.at_step = fail
            with open(os.devnull, "w") as nowhere:
                before, sys.stderr = sys.stderr, nowhere
                said = agent.ask("train", start, settings={})
                gradient = agent.ask("gradient", start, settings={})
                unknown = agent.ask("dance", start)
                sys.stderr = before
            trainer.at_step = lambda task, step: None
            _, done = agent.train(start)
        self.assertEqual(said["reason"], "FileNotFoundError: part-1.npz")
        self.assertFalse(said["diverged"])
        self.assertIn("can't compute the gradient", gradient["reason"])
        self.assertIn("does not know the request 'dance'", unknown["reason"])
        self.assertEqual(done["steps"], 5)

    def test_a_loss_that_is_not_finite_is_divergence(self):
        class Diverges(Adds):
            def train(self, weights, task):
                return fl.TrainReport(1, float("nan"))

        with agent_for(Diverges()) as agent:
            agent.hello()
            start = {"w": np.zeros((2, 3)), "b": np.zeros(3)}
            trained = agent.ask("train", start, settings={})
            start["w"][0, 0] = np.inf
            measured = agent.ask("evaluate", start)
        for said, loss in (trained, "nan"), (measured, "inf"):
            self.assertEqual((said["type"], said["diverged"]), ("error", True))
            self.assertEqual(said["reason"], f"the loss is {loss}")

    def test_a_request_is_cancelled_in_the_middle_and_before_it_begins(self):
        trainer = Adds()
        trainer.at_step = lambda task, step: time.sleep(0.01)
        start = {"w": np.zeros((2, 3)), "b": np.zeros(3)}
        with agent_for(trainer) as agent:
            agent.hello()
            running = agent.begin("train", start, settings={"steps": 10**9})
            agent.begin("train", settings={"steps": 10**9})
            time.sleep(0.1)
            agent.send({"type": "cancel", "id": running + 1})
            agent.send({"type": "cancel", "id": running})
            begin = time.monotonic()
            for number in running, running + 1:
                said = agent.end(number)
                self.assertEqual((said["type"], said["reason"]), ("error", "cancelled"))
            self.assertLess(time.monotonic() - begin, 5)
            self.assertEqual(agent.train(start)[1]["steps"], 5)
        self.assertEqual(len(agent.progress), 2)  # A line of hundreds of steps: one a second.

    def test_names_of_any_script_and_a_long_line(self):
        names = [f"слой.{number}.重み \"é\" {'x' * 100}" for number in range(20000)]
        with agent_for(Adds({name: np.zeros(1, np.float32) for name in names})) as agent:
            said = agent.hello()
            self.assertEqual([tensor["name"] for tensor in said["tensors"]], names)
            filler = "x" * (8 << 20)
            start = {name: np.ones(1) for name in names}
            number = agent.begin("train", start, ignored=filler, settings={"steps": 1, "lr": 1.0})
            self.assertEqual(agent.end(number)["type"], "done")
            out = agent.out()
        self.assertEqual(set(out), set(names))
        self.assertTrue(all(array == 2 for array in out.values()))

    def test_text_that_utf_8_does_not_have_is_made_printable(self):
        """Names of files that are not UTF-8, as Python has them, and halves of characters."""
        trainer = Adds()
        start = {"w": np.zeros((2, 3)), "b": np.zeros(3)}

        def fail(task, step):
            raise ValueError(f"{os.fsdecode(b'M' + bytes([0xFC]) + b'ller.dcm')} Größe \ud83e")

        trainer.at_step = fail
        expected = "ValueError: M\\xfcller.dcm Größe \\ud83e"
        for encoding, logged in ("utf-8", expected), ("ascii", expected.replace("ö", "\\xf6")):
            logged = logged.replace("ß", "\\xdf" if encoding == "ascii" else "ß")
            log = io.TextIOWrapper(io.BytesIO(), encoding, errors="strict")
            with agent_for(trainer) as agent, contextlib.redirect_stderr(log):
                agent.hello()
                self.assertEqual(agent.ask("train", start, settings={})["reason"], expected)
                trainer.at_step = lambda task, step: None
                self.assertEqual(agent.train(start)[1]["steps"], 5)
                trainer.at_step = fail
            self.assertIn(logged, log.buffer.getvalue().decode())

    def test_a_result_that_can_not_be_said_is_an_error(self):
        class Odd(Adds):
            def evaluate(self, weights, task):
                return fl.EvalReport(4, 0.5, {b"bytes": 1.0})

        start = {"w": np.zeros((2, 3)), "b": np.zeros(3)}
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            with agent_for(Odd()) as agent:
                agent.hello()
                self.assertIn("TypeError: keys must be str", agent.ask("evaluate", start)["reason"])
                self.assertEqual(agent.train(start)[1]["steps"], 5)

    def test_a_result_of_a_wrong_shape_names_the_tensor(self):
        class Wrong(Adds):
            def train(self, weights, task):
                weights["w"] = np.zeros(5)
                return fl.TrainReport(1, 0.0)

        with agent_for(Wrong()) as agent, open(os.devnull, "w") as nowhere:
            agent.hello()
            before, sys.stderr = sys.stderr, nowhere
            said = agent.ask("train", {"w": np.zeros((2, 3)), "b": np.zeros(3)}, settings={})
            sys.stderr = before
        self.assertIn("tensor 'w' has shape (5,), expected (2, 3)", said["reason"])


class Settings(unittest.TestCase):
    """The names of the list that fl-client makes its requests from, those of the page about the
    protocol, and the fields that the package reads."""

    def test_the_package_and_the_page_know_all_settings(self):
        source = pathlib.Path(__file__).resolve().parents[2]
        rows = re.findall(
            r'TrainField\{\s*&TrainSettings::\w+,\s*"\w+",\s*"\w+",\s*"(\w*)"\s*\}',
            (source / "shared/algorithm/train_fields.hpp").read_text(),
        )
        names = sorted(name for name in rows if name)
        self.assertIn("batch_size", names)
        known = sorted(field.name for field in dataclasses.fields(fl.Settings))
        self.assertEqual(known, names)
        page = (source / "docs/design/trainer-protocol.md").read_text()
        examples = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
        train = next(json.loads(text) for text in examples if '"type": "train"' in text)
        self.assertEqual(sorted(train["settings"]), names)

    def test_settings_are_read_as_they_were_sent(self):
        sent = {field.name: 3 for field in dataclasses.fields(fl.Settings)}
        sent["optimizer"] = {"name": "adam", "beta1": 0.5, "beta2": 0.25, "epsilon": 0.125}
        self.assertEqual(dataclasses.asdict(fl.Settings.of(sent)), sent)

    def test_a_setting_that_one_end_lacks_is_an_error_that_names_it(self):
        for kind in ("sgd", "adamw"):
            moments = {"beta1": 0.5, "beta2": 0.25, "epsilon": 0.125} if kind == "adamw" else {}
            sent = all_settings(optimizer={"name": kind, **moments})
            self.assertEqual(fl.Settings.of(sent).optimizer.name, kind)
            for name in sent:
                less = {key: value for key, value in sent.items() if key != name}
                with self.assertRaisesRegex(ValueError, f"no setting '{name}': it is older than"):
                    fl.Settings.of(less)
            with self.assertRaisesRegex(ValueError, "setting 'warmth', which this .* not know"):
                fl.Settings.of({**sent, "warmth": 1})
            for name in sent["optimizer"]:
                less = {key: v for key, v in sent["optimizer"].items() if key != name}
                with self.assertRaisesRegex(ValueError, f"no member of optimizer '{name}'"):
                    fl.Settings.of({**sent, "optimizer": less})

    def test_a_request_without_all_settings_fails_and_the_next_one_is_answered(self):
        with agent_for(Adds()) as agent:
            agent.hello()
            start = {"w": np.zeros((2, 3)), "b": np.zeros(3)}
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
                said = agent.ask("train", start)  # Without any.
            self.assertEqual(said["type"], "error")
            self.assertIn("fl-client has sent no setting 'epochs'", said["reason"])
            self.assertEqual(agent.ask("train", start, settings={})["type"], "done")


SLEEPER = """
    import time
    import numpy as np
    import tributary_fl as fl
    from tributary_fl.numpy import Trainer

    class Sleeper(Trainer):
        def train(self, weights, task):
            print("training", flush=True)
            {work}

    fl.run(Sleeper({{"w": np.zeros(3, np.float32)}}, 1), join="ignored")
    print("after the run")
"""


class Processes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tributary-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def start(self, work):
        script = self.folder / "train.py"
        script.write_text(textwrap.dedent(SLEEPER).format(work=work))
        agent = AgentWithProcess([script], self.folder)
        self.addCleanup(agent.close)
        agent.hello()
        return agent

    def test_it_ends_at_once_when_the_socket_closes_while_it_trains(self):
        agent = self.start("time.sleep(1000)")
        agent.begin("train", {"w": np.zeros(3)}, settings={})
        while "training" not in agent.log.read_text():
            time.sleep(0.01)
        begin = time.monotonic()
        agent.sock.shutdown(socket.SHUT_RDWR)
        self.assertEqual(agent.process.wait(fake_agent.WAIT_MAX_S), 1)
        self.assertLess(time.monotonic() - begin, 2)

    def test_it_ends_with_fl_client_although_nobody_reads_its_output(self):
        """fl-client is killed before it has read hello: the socket then says ECONNRESET, and the
        pipe to the log has no reader."""
        script = self.folder / "train.py"
        script.write_text(textwrap.dedent(SLEEPER).format(work="pass"))
        for closes in ("", "exec 2>&-;", "exec >&- 2>&-;"):
            reader, writer = os.pipe()
            folder = self.folder / f"run{len(closes)}"
            folder.mkdir()
            shell = ("sh", "-c", closes + 'exec "$0" "$1"', sys.executable, script)
            agent = AgentWithProcess(shell, folder, program=(), output=writer)
            os.close(writer)
            agent.sock.recv(1, socket.MSG_PEEK)  # Hello is there, and stays unread.
            os.close(reader)
            agent.file.close()
            agent.sock.close()
            with self.subTest(closes=closes):
                self.assertEqual(agent.process.wait(fake_agent.WAIT_MAX_S), 1)
            agent.close()

    def test_it_ends_when_a_message_can_not_be_read(self):
        for line in (b"no JSON\n", b"[1]\n", b"[" * 100_000 + b"\n", b'{"type": "cancel"}\n'):
            with self.subTest(line=line[:20]):
                folder = tempfile.mkdtemp(dir=self.folder)
                script = self.folder / "train.py"
                script.write_text(textwrap.dedent(SLEEPER).format(work="pass"))
                agent = AgentWithProcess([script], folder)
                self.addCleanup(agent.close)
                agent.hello()
                agent.sock.sendall(line)
                self.assertEqual(agent.process.wait(fake_agent.WAIT_MAX_S), 1)

    def test_bye_ends_the_run_and_the_program_goes_on(self):
        agent = self.start("pass")
        agent.bye()
        self.assertEqual(agent.process.wait(fake_agent.WAIT_MAX_S), 0)
        self.assertIn("after the run", agent.log.read_text())

    def test_bye_cancels_what_is_under_way(self):
        agent = self.start("[time.sleep(0.01) for _ in iter(task.check, 1)]")
        agent.begin("train", {"w": np.zeros(3)}, settings={})
        agent.bye()
        self.assertEqual(agent.process.wait(fake_agent.WAIT_MAX_S), 0)

    def test_an_exception_leaves_its_traceback_in_the_log(self):
        agent = self.start("raise KeyError('x')")
        said = agent.ask("train", {"w": np.zeros(3)}, settings={})
        self.assertEqual(said["reason"], "KeyError: 'x'")
        self.assertIn("in train", agent.log.read_text())
        agent.bye()
        self.assertEqual(agent.process.wait(fake_agent.WAIT_MAX_S), 0)


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tributary-")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "x.safetensors"

    def test_the_same_file_is_written_again_and_grows(self):
        for values in np.arange(3.0), np.arange(3.0) + 1, np.arange(1000.0):
            _tensors.write(self.path, {"a": values, "b": values.astype(np.float16)})
            inode = self.path.stat().st_ino
            read = fake_agent.read_tensors(self.path)
            np.testing.assert_array_equal(read["a"], values)
            np.testing.assert_array_equal(read["b"], values.astype(np.float16))
        self.assertEqual(self.path.stat().st_ino, inode)

    def test_writes_to_what_was_read_stay_in_this_process(self):
        fake_agent.write_tensors(self.path, {"a": ("F32", np.ones(3))})
        array = _tensors.read(self.path)["a"]
        array += 1
        np.testing.assert_array_equal(fake_agent.read_tensors(self.path)["a"], np.ones(3))

    def test_empty_and_scalar_tensors_and_bf16(self):
        tensors = {
            "empty": ("F32", np.zeros((0, 3))),
            "scalar": ("F64", np.float64(2.5)),
            "half": ("BF16", np.array([1.0, -2.5, 3e38])),
            "last": ("F16", np.zeros(0)),
        }
        fake_agent.write_tensors(self.path, tensors)
        file = _tensors.read(self.path)
        self.assertEqual(file["empty"].shape, (0, 3))
        self.assertEqual(float(file["scalar"]), 2.5)
        half = _tensors.as_float32(file, "half")
        np.testing.assert_allclose(half, [1.0, -2.5, 3e38], rtol=0.004)
        specs = [file.spec(name) for name in file]
        written = _tensors.create(self.path.with_suffix(".out"), specs)
        for name in file:
            written[name][...] = file[name]
        again = fake_agent.read_tensors(self.path.with_suffix(".out"))
        np.testing.assert_array_equal(again["half"], half)

    def test_a_cut_or_foreign_file_is_an_error_that_names_it(self):
        fake_agent.write_tensors(self.path, {"a": ("F32", np.ones(30))})
        whole = self.path.read_bytes()
        for size in 0, 5, 20, len(whole) - 1:
            self.path.write_bytes(whole[:size])
            with self.assertRaisesRegex(_tensors.TensorFileError, "x.safetensors"):
                _tensors.read(self.path)
        self.path.write_bytes(b"hello, this is text, and no file of tensors")
        with self.assertRaises(_tensors.TensorFileError):
            _tensors.read(self.path)
        self.path.write_bytes(whole.replace(b"F32", b"F99"))
        with self.assertRaisesRegex(_tensors.TensorFileError, "unknown number format F99"):
            _tensors.read(self.path)

    def test_a_file_beyond_4_gib(self):
        # Sparse: only the pages that are written take space.
        elements = (4 << 30) // 4 + 1024
        path = self.path.with_suffix(".large")
        with open(path, "wb") as file:
            file.truncate(elements * 4 + (1 << 20))
        tensor = _tensors.Tensor("large", (elements,))
        before, os.posix_fallocate = os.posix_fallocate, lambda *arguments: None
        try:
            _tensors.create(path, [tensor])["large"][-1] = 7
        finally:
            os.posix_fallocate = before
        read = _tensors.read(path)["large"]
        self.assertEqual((read.size, read[-1], read[0]), (elements, 7, 0))


FAKE_CLIENT = """#!{python}
import json, os, signal, socket, sys, time
arguments = sys.argv[1:]
open({folder!r} + "/arguments", "w").write(json.dumps([arguments, sys.stdin.read()]))
listener = socket.socket(socket.AF_UNIX)
listener.bind(arguments[arguments.index("--trainer-socket") + 1])
time.sleep(0.1)
print("2026 info joined", file=sys.stderr, flush=True)
listener.listen(1)
sock = listener.accept()[0]
file = sock.makefile("rb")
assert json.loads(file.readline())["type"] == "hello"
{rest}
"""


class Run(unittest.TestCase):
    """run() with a program in fl-client's place."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tributary-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def client(self, rest):
        client = self.folder / "fl-client"
        text = textwrap.dedent(FAKE_CLIENT)
        client.write_text(text.format(python=sys.executable, folder=str(self.folder), rest=rest))
        client.chmod(0o755)
        before = os.environ.get("FL_BIN")
        os.environ["FL_BIN"] = str(self.folder)

        def restore():
            del os.environ["FL_BIN"]
            if before is not None:
                os.environ["FL_BIN"] = before

        self.addCleanup(restore)

    def run_it(self, trainer=None, **options):
        log = self.folder / "log"
        fl.run(trainer or Adds(), state=self.folder / "state", log=log, **options)
        return log.read_text()

    def test_flags_and_the_token(self):
        self.client('sock.sendall(b\'{"type": "bye"}\\n\'); file.read()')
        log = self.run_it(
            join="flj1.secret", name="me", evaluate_only=True, stay=True, threads=2,
            max_parameters=99, options=["--verbose"],
        )  # fmt: skip
        self.assertIn("info joined", log)
        arguments, said = json.loads((self.folder / "arguments").read_text())
        self.assertEqual(said, "flj1.secret\n")
        self.assertNotIn("flj1.secret", " ".join(arguments))
        socket_path = arguments.pop(arguments.index("--trainer-socket") + 1)
        self.assertFalse(pathlib.Path(socket_path).parent.exists())
        expected = [
            "--state", str(self.folder / "state"), "--name", "me", "--evaluate-only", "--stay",
            "--threads", "2", "--max-parameters", "99", "--verbose", "--trainer-socket",
            "--join", "-",
        ]  # fmt: skip
        self.assertEqual(arguments, expected)

    def test_the_last_error_is_raised(self):
        self.client('sys.exit("fl-client: the trainer has failed 3 times")')
        with self.assertRaisesRegex(fl.Error, "^the trainer has failed 3 times$"):
            self.run_it()
        self.client("os.kill(os.getpid(), 9)")
        with self.assertRaisesRegex(fl.Error, "ended by signal 9"):
            self.run_it()

    def test_the_end_of_fl_client_ends_training(self):
        trainer = Adds()
        trainer.at_step = lambda task, step: time.sleep(0.01)
        weights = self.folder / "weights.safetensors"
        fake_agent.write_tensors(
            weights, {"w": ("F32", np.zeros((2, 3))), "b": ("F64", np.zeros(3))}
        )
        settings = all_settings(steps=10**9)
        task = {"type": "train", "id": 1, "weights": str(weights), "settings": settings}
        self.client(
            f"sock.sendall(json.dumps({task}).encode() + b'\\n')\n"
            "file.readline()\n"
            "sys.exit('fl-client: x')"
        )
        with self.assertRaisesRegex(fl.Error, "^x$"):
            self.run_it(trainer)

    def test_a_failed_request_is_the_cause_of_the_error(self):
        trainer = Adds()

        def fail(task, step):
            raise OSError("no data")

        trainer.at_step = fail
        weights = self.folder / "weights.safetensors"
        fake_agent.write_tensors(
            weights, {"w": ("F32", np.zeros((2, 3))), "b": ("F64", np.zeros(3))}
        )
        task = {"type": "train", "id": 1, "weights": str(weights), "settings": all_settings()}
        self.client(
            f"sock.sendall(json.dumps({task}).encode() + b'\\n')\n"
            "while json.loads(file.readline())['type'] != 'error': pass\n"
            "sys.exit('fl-client: trainer: OSError')"
        )
        with open(os.devnull, "w") as nowhere, self.assertRaises(fl.Error) as raised:
            before, sys.stderr = sys.stderr, nowhere
            try:
                self.run_it(trainer)
            finally:
                sys.stderr = before
        self.assertIsInstance(raised.exception.__cause__, OSError)

    def test_ctrl_c_goes_to_fl_client(self):
        self.client(
            "def stop(*_): open(sys.path[0] + '/stopped', 'w'); sys.exit(0)\n"
            "signal.signal(signal.SIGINT, stop)\n"
            "os.kill(os.getppid(), signal.SIGINT)\n"
            "time.sleep(60)"
        )
        before = signal.getsignal(signal.SIGINT)
        with self.assertRaises(KeyboardInterrupt):
            self.run_it()
        self.assertTrue((self.folder / "stopped").exists())
        self.assertIs(signal.getsignal(signal.SIGINT), before)

    def test_without_the_program_the_error_says_what_to_do(self):
        self.client("")
        (self.folder / "fl-client").unlink()
        before, os.environ["PATH"] = os.environ["PATH"], ""
        try:
            with self.assertRaisesRegex(fl.Error, "fl-client is not installed: .*FL_BIN"):
                self.run_it()
        finally:
            os.environ["PATH"] = before


if __name__ == "__main__":
    unittest.main()
