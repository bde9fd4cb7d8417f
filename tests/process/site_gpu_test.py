# SPDX-License-Identifier: Apache-2.0
"""A client on a GPU, and a site whose ranks talk over NCCL: real programs on a machine with a GPU.
One is enough: NCCL refuses two ranks of one machine on one GPU, so each says that it is a machine
of its own."""

import math
import os
import shutil
import subprocess
import unittest
import unittest.mock

from federation import BIN, free_port, wait_until
from sim_test import read_tensors
from site_runs import SiteTest

ROUNDING = 1e-4  # The change of a value, or of 1 if it is smaller, that sums in another order may cause.
CODECS = ("ecuq:2+ef", "qsgd:7", "kbit:4", "eden:2", "powersgd:2")


def has_gpu():
    """Whether a driver shows one, and fl-client was built for it."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # federation.py has hidden GPUs.
        del os.environ["CUDA_VISIBLE_DEVICES"]
    if not (BIN / "fl-rank").exists() or not shutil.which("nvidia-smi"):
        return False
    linked = subprocess.run(["ldd", BIN / "fl-rank"], capture_output=True, text=True, check=True)
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return "libtorch_cuda" in linked.stdout and "GPU 0" in listed.stdout


def distance(one, other):
    """The Euclidean distance of two models."""
    pairs = (pair for name in one for pair in zip(one[name], other[name], strict=True))
    return math.dist(*zip(*pairs))


@unittest.skipUnless(has_gpu(), "NOT TESTED: there is no GPU, or this build is not for one")
class OnGpu(SiteTest):
    ranks = 0  # Ranks that share the GPU, each as if on a machine of its own; 0: the client has no ranks.

    def train(self):
        if self.ranks == 0:
            return super().train()
        self.others = [self.rank(number) for number in range(1, self.ranks)]
        self.client = self.rank(0, *self.client_flags)

    def rank(self, number, *flags):
        machine = {
            "LOCAL_RANK": 0,
            "LOCAL_WORLD_SIZE": 1,
            "NCCL_HOSTID": f"machine {number}",
            "NCCL_SOCKET_IFNAME": "lo",
            "NCCL_IB_DISABLE": 1,
        }
        return self.launched(self.federation, number, *flags, size=self.ranks, more=machine)

    def run_of_ranks(self, ranks, *flags, **run):
        self.ranks, self.port = ranks, free_port()
        try:
            return self.run_of("--device", "cuda", *flags, **run)
        finally:
            self.ranks = 0

    def test_a_gpu_trains_and_codes_what_a_cpu_does(self):
        """The two round differently, so a value may lie on the other side of a code's threshold."""
        for codec in CODECS:
            with self.subTest(codec=codec):
                run = {"batch": 16, "rounds": 1, "server": ("--codec", codec)}
                cpu, _, _ = self.run_of("--device", "cpu", name=f"cpu-{codec}", **run)
                start = read_tensors(self.federation.checkpoints / "round-000000.safetensors")
                gpu, _, _ = self.run_of("--device", "cuda", name=f"gpu-{codec}", **run)
                self.assertGreater(distance(cpu, start), 0)
                self.assertLess(distance(cpu, gpu), 0.03 * distance(cpu, start))

    def test_each_kind_of_built_in_model_trains_on_a_gpu(self):
        """A GPU multiplies convolutions in 19 bits (TF32)."""
        full = [(m, "fp32") for m in ("linear:784-1", "logistic", "lenet", "cnn", "resnet8")]
        low = [("cnn", precision) for precision in ("bf16", "fp16", "adaptive")]
        for model, precision in full + low:
            with self.subTest(model=model, precision=precision):
                flags = ("--precision", precision)
                run = {"batch": 16, "rounds": 1, "model": model, "server": ("--local-steps", 3)}
                name = f"{model}-{precision}"
                cpu, _, _ = self.run_of("--device", "cpu", *flags, name=f"cpu-{name}", **run)
                start = read_tensors(self.federation.checkpoints / "round-000000.safetensors")
                gpu, _, _ = self.run_of("--device", "cuda", *flags, name=f"gpu-{name}", **run)
                self.assertGreater(distance(cpu, start), 0)
                largest = 0.01 if precision == "fp32" else 0.1
                self.assertLess(distance(cpu, gpu), largest * distance(cpu, start))

    def test_ranks_over_nccl_train_as_one_process_and_repeat_their_bits(self):
        alone, _, _ = self.run_of("--device", "cuda", batch=16, name="alone")
        flags = ("--backend", "nccl", "--bucket-mb", 0.02)
        many, digests, client = self.run_of_ranks(2, *flags, batch=8, name="two")
        self.assert_near(alone, many, ROUNDING)
        self.assertIn("entered a group of 2 ranks", client.stderr())
        _, again, _ = self.run_of_ranks(2, *flags, batch=8, name="again")
        self.assertEqual(again, digests)

    def test_hooks_over_nccl_learn_and_repeat_their_bits(self):
        for hook in ("codec:ecuq:4+ef", "powersgd:2,start=2", "topk:0.1", "post-local-sgd:2,start=1"):
            with self.subTest(hook=hook):
                flags = ("--hook", hook, "--bucket-mb", 0.02)
                once, again = (
                    self.run_of_ranks(2, *flags, batch=8, name=f"{hook}-{name}")[1]
                    for name in ("once", "again")
                )
                self.assertEqual(once, again)
                self.assertEqual(len(set(once)), 3)

    def test_a_killed_rank_is_replaced_and_the_model_is_the_same(self):
        def kill_one(federation, client):
            wait_until("two rounds", lambda: federation.rounds_done() >= 2)
            self.others[0].kill()
            client.wait_for("missing: 1")
            self.others[0] = self.rank(1)

        run = {"batch": 8, "rounds": 12}
        flags = ("--rank-timeout", 30)
        _, undisturbed, _ = self.run_of_ranks(2, *flags, name="undisturbed", **run)
        _, digests, _ = self.run_of_ranks(2, *flags, name="killed", meanwhile=kill_one, **run)
        self.assertEqual(digests, undisturbed)

    def test_gloo_sums_gradients_of_a_gpu(self):
        alone, _, _ = self.run_of("--device", "cuda", batch=16, name="alone")
        shared = ("--ranks", 2, "--device", "cuda:0", "--backend", "gloo")
        for hook in ("allreduce", "post-local-sgd:1,start=1"):
            with self.subTest(hook=hook):
                many, _, _ = self.run_of(*shared, "--hook", hook, batch=8, name=hook)
                self.assert_near(alone, many, ROUNDING)

    def test_ranks_on_the_cpu_beside_a_gpu_talk_over_gloo(self):
        flags = ("--ranks", 2, "--device", "cpu")
        _, beside, _ = self.run_of(*flags, batch=8, name="beside")
        with unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
            _, without, _ = self.run_of("--ranks", 2, batch=8, name="without")
        self.assertEqual(beside, without)

    def test_what_does_not_go_is_said_at_the_start(self):
        for number, (flags, text) in enumerate(
            (
            (("--ranks", 20), "rank [0-9]+ of 20 on this machine would train on GPU [0-9]+, but "),
            (("--ranks", 2, "--device", "cpu", "--backend", "nccl"), "with --device cpu use gloo"),
            (("--ranks", 2, "--device", "cuda:0", "--rank-timeout", 20), "Duplicate GPU|invalid usage"),
        )
        ):
            with self.subTest(text):
                with self.assertRaises(AssertionError) as refused:
                    self.run_of(*flags, batch=8, name=f"refused-{number}")
                self.assertRegex(str(refused.exception), text)

    def test_doctor_measures_a_site_of_gpus(self):
        code, out, err = self.make().command("fl-client", "site", "doctor", "--ranks", 1)
        self.assertEqual(code, 0, out + err)
        self.assertRegex(out, "ok +GPUs +1 each, ")
        self.assertRegex(out, "ok +NCCL version +[0-9.]+ everywhere")
        self.assertNotIn("TORCH_NCCL", out)  # The variables that a rank sets itself.
        code, out, _ = self.make("many").command("fl-client", "site", "doctor", "--ranks", 20)
        self.assertEqual(code, 1)
        self.assertRegex(out, r"fail +GPUs +rank \d+ \(.*\) has \d+ GPUs for 20 ranks")
        self.assertRegex(out, "links +not measured")


if __name__ == "__main__":
    unittest.main()
