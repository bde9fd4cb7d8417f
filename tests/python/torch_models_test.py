# SPDX-License-Identifier: Apache-2.0
"""tributary_fl.torch with models as people have them: wrapped, and frozen in part."""

import pathlib
import sys
import tempfile
import unittest

import needs_torch
import numpy as np

import fake_agent
from fake_agent import agent_for

sys.path.insert(0, str(fake_agent.PACKAGE))

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel

import tributary_fl as fl
from tributary_fl import Task, hooks
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


def setUpModule():
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    store = f"file://{folder.name}/store"  # DistributedDataParallel asks for a group.
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    unittest.addModuleCleanup(dist.destroy_process_group)


class Wrapped(unittest.TestCase):
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


def normed():
    """A model with BatchNorms, one of them as it is after a training elsewhere, and a dropout."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 6),
        nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3),
    )  # fmt: skip
    model[1].running_mean.fill_(0.5)
    model[1].running_var.fill_(2.0)
    return model


def freeze(*parts):
    for part in parts:
        part.eval().requires_grad_(False)


def modes(model):
    return [part.training for part in model.modules()]


class ModesOfParts(unittest.TestCase):
    """What a user has put into evaluation mode stays so."""

    def moved(self, model, **options):
        """Trains and measures. The names of the statistics that have moved on this client or on
        their way, and the model's modes before, while it was trained, and after."""

        class Watched(Trainer):
            def train_step(self, batch):
                seen.append(modes(self.model))
                return super().train_step(batch)

        before, seen = modes(model), []
        trainer = Watched(model, data(), eval_data=data(20), device="cpu", **options)
        state = {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}
        with agent_for(trainer) as agent:
            start = {t["name"]: state[t["name"]] for t in agent.hello()["tensors"]}
            out, _ = agent.train(start, epochs=2, batch_size=16, lr=0.1)
            agent.ask("evaluate", out)
            agent.ask("gradient", start, settings={})
        self.assertEqual(modes(model), seen[-1])
        self.assertTrue(all(one == seen[0] for one in seen))
        changed = {n for n in out if "running" in n and not np.array_equal(out[n], start[n])}
        return {name.rpartition(".")[0] for name in changed}, before, seen[0]

    def test_a_frozen_batch_norm_does_not_move(self):
        model = normed()
        freeze(model[1])
        moved, before, while_trained = self.moved(model)
        self.assertEqual(moved, {"4"})
        self.assertEqual(while_trained, before)
        model = normed()
        model[1].eval()  # Scale and shift are trained.
        self.assertEqual(self.moved(model)[0], {"4"})

    def test_every_mix_of_modes_is_kept(self):
        model = normed()
        model.eval()  # A part that is new is in training mode.
        model[4] = nn.BatchNorm1d(6)
        with self.assertWarnsRegex(UserWarning, "1 dropout layers, such as '5', are in evaluation"):
            moved, before, while_trained = self.moved(model)
        self.assertEqual(moved, {"4"})
        self.assertEqual(while_trained, before)
        self.assertEqual(before.count(True), 1)

    def test_a_model_in_evaluation_mode_as_a_whole_is_trained_but_for_frozen_layers(self):
        moved, _, while_trained = self.moved(normed().eval())
        self.assertEqual(moved, {"1", "4"})
        self.assertTrue(all(while_trained))
        model = normed().eval()
        freeze(model[1])
        moved, _, while_trained = self.moved(model)
        self.assertEqual(moved, {"4"})
        self.assertEqual(while_trained.count(False), 1)

    def test_patterns_of_frozen_parameters_hold_statistics(self):
        self.assertEqual(self.moved(normed(), frozen=["1.*"])[0], {"4"})
        self.assertEqual(self.moved(normed(), frozen=["*.running_*"])[0], set())
        self.assertEqual(self.moved(normed(), frozen=["1.weight"])[0], {"1", "4"})

    def test_a_models_own_train_is_asked(self):
        class Own(nn.Sequential):
            def train(self, mode=True):
                super().train(mode)
                self[1].eval()
                return self

        self.assertEqual(self.moved(Own(*normed()))[0], {"4"})


def values_of(model):
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


class Summed(nn.ModuleDict):
    def forward(self, x):
        return sum(part(x) for part in self.values())


class Names(unittest.TestCase):
    """PyTorch takes any text as a name, and so does safetensors."""

    PARTS = ["lead I", "blood\tpressure\n2", "Größe", "重み", "a=b;c*", "_orig_mod", "\\s", '"x"']

    def model(self, parts=None):
        torch.manual_seed(1)
        return Summed({name: nn.Linear(4, 4) for name in parts or self.PARTS})

    def test_they_travel_and_stand_in_files(self):
        names = [f"{part}.{last}" for part in self.PARTS for last in ("weight", "bias")]
        model = self.model()
        x = torch.zeros(8, 4)
        with agent_for(Trainer(model, (x, x[:, 0].long()), device="cpu")) as agent:
            self.assertEqual([t["name"] for t in agent.hello()["tensors"]], names)
            out, _ = agent.train(values_of(model), lr=0.1)
        self.assertEqual(list(out), names)
        with tempfile.TemporaryDirectory() as folder:
            save(model, pathlib.Path(folder) / "x")
            self.assertEqual(list(fl.load(pathlib.Path(folder) / "x")), names)
            again = fl.load(pathlib.Path(folder) / "x", self.model())
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(tensor, again.state_dict()[name]))

    def test_hooks_take_them(self):
        for spec in "ecuq:2+ef", "powersgd:2+ef", "*I.weight=none;*=qsgd:7":
            wrapped = DistributedDataParallel(self.model())
            hook = hooks.codec(spec)
            hook.register(wrapped)
            for _ in range(3):
                wrapped(torch.ones(2, 4)).square().mean().backward()
            kept = hook.state.state_dict()["residuals"]
            names = {name for name, _ in self.model().named_parameters()}
            self.assertEqual(set(kept), names if spec.endswith("+ef") else set())

    def test_what_no_file_can_have_is_refused(self):
        for name in "\udcfc", "zero\0byte":
            with self.assertRaisesRegex(ValueError, r"can't have the name '(\\udcfc|zero\\x00byte)"):
                Trainer(self.model([name]), device="cpu")


if __name__ == "__main__":
    unittest.main()
