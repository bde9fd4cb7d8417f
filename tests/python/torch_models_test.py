# SPDX-License-Identifier: Apache-2.0
"""tributary_fl.torch with models as people have them: wrapped, and frozen in part."""

import pathlib
import sys
import tempfile
import unittest

import needs_torch
import numpy as np

import fake_agent

sys.path.insert(0, str(fake_agent.PACKAGE))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import tributary_fl as fl
from tributary_fl import Task
from tributary_fl._hook_state import State
from tributary_fl._torch_names import named_parameters
from tributary_fl.torch import Trainer, save

torch.set_num_threads(1)


def data(examples=70, seed=0):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(examples, 8, generator=draw)
    return x, (x[:, :3].argmax(1)).long()


class Network(nn.Module):
    """Has a part by the name that some wrappers give to what is in them."""

    def __init__(self, wrap_part=lambda part: part):
        super().__init__()
        torch.manual_seed(1)
        self.module = wrap_part(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16)))
        self.head = nn.Linear(16, 3)
        self.head.bias.requires_grad_(False)

    def forward(self, x):
        return self.head(self.module(x).tanh())


def compiled(part):
    return torch.compile(part, backend="eager")


WRAPPERS = {
    "DataParallel": nn.DataParallel,
    "DistributedDataParallel": DistributedDataParallel,
    "AveragedModel": AveragedModel,
}
if hasattr(torch, "compile"):  # PyTorch 2.0.
    WRAPPERS["compile"] = compiled
    WRAPPERS["compile twice"] = lambda part: compiled(nn.DataParallel(part))
FORMS = {
    **{name: (lambda wrap=wrap: wrap(Network())) for name, wrap in WRAPPERS.items()},
    **{f"{name} of a part": (lambda wrap=wrap: Network(wrap)) for name, wrap in WRAPPERS.items()},
}


class Wrapped(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        store = f"file://{folder.name}/store"  # DistributedDataParallel asks for a group.
        dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
        cls.addClassCleanup(dist.destroy_process_group)

    NAMES = [
        *("module.0.weight", "module.0.bias", "module.1.weight", "module.1.bias", "head.weight"),
        *("module.1.running_mean", "module.1.running_var"),
    ]

    def trained(self, model):
        """Hello, trained weights, gradient and initial weights. In this thread, as torch.compile may
        crash where several threads use it one after another."""
        trainer = Trainer(model, data(), device="cpu")
        state = Network().state_dict()
        results = []
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            weights = {n: ("F32", state[n].numpy()) for n in self.NAMES}
            fake_agent.write_tensors(folder / "weights", weights)
            settings = fake_agent.all_settings(lr=0.1, batch_size=16, proximal_mu=0.1)
            for kind in "train", "gradient", "initial":
                request = {"type": kind, "settings": settings}
                files = {"weights": str(folder / "weights"), "out": str(folder / kind)}
                getattr(trainer, f"on_{kind}")(Task({**request, **files}))
                results.append(fake_agent.read_tensors(folder / kind))
        return [trainer.hello(), *results]

    def test_names_and_numbers_are_those_of_the_module_itself(self):
        expected, trained, gradient, _ = self.trained(Network())
        self.assertEqual([tensor.name for tensor in expected.tensors], self.NAMES)
        for form, make in FORMS.items():
            with self.subTest(form):
                said, out, wrapped_gradient, initial = self.trained(make())
                self.assertEqual(said, expected)
                for name in self.NAMES:
                    np.testing.assert_allclose(out[name], trained[name], rtol=1e-5, atol=1e-6)
                    np.testing.assert_allclose(
                        wrapped_gradient[name], gradient[name], rtol=1e-4, atol=1e-6
                    )
                self.assertEqual(set(initial), set(self.NAMES))
                # A function that makes a wrapped model.
                self.assertEqual(set(self.trained(make)[3]), set(self.NAMES))

    def test_patterns_of_frozen_parameters_know_these_names(self):
        digest = Trainer(Network(), frozen=["module.0.*"], device="cpu").hello().frozen
        for form, make in FORMS.items():
            if form == "DistributedDataParallel":
                continue  # It takes no patterns.
            with self.subTest(form):
                said = Trainer(make(), data(), frozen=["module.0.*"], device="cpu").hello()
                self.assertEqual([t.name for t in said.tensors], self.NAMES[2:])
                self.assertEqual(said.frozen, digest)

    def test_files_of_one_form_fit_every_other(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "model.safetensors"
            for form, make in FORMS.items():
                with self.subTest(form):
                    changed = make()
                    with torch.no_grad():
                        for parameter in changed.parameters():
                            if parameter.requires_grad:
                                parameter += 1
                    save(changed, path)
                    self.assertEqual(
                        [n for n in fl.load(path) if not n.startswith("frozen.")], self.NAMES
                    )
                    plain, again = fl.load(path, Network()), fl.load(path, make())
                    for loaded in plain, again:
                        for (name, p), (_, q) in zip(
                            named_parameters(loaded), named_parameters(changed)
                        ):
                            self.assertTrue(torch.equal(p, q), name)

    def test_hooks_know_these_names(self):
        for form, make in FORMS.items():
            with self.subTest(form):
                state = State(None)
                state.named(make())
                names = set(state._keys.values())
                self.assertEqual(names, {n for n, _ in Network().named_parameters()})


if __name__ == "__main__":
    unittest.main()
