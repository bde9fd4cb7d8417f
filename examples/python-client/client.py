#!/usr/bin/env python3
"""A Tributary client in Python. This file is the conversation:

    Hello -> Welcome -> Ready, then round by round
    Offer -> Fetch -> Model, Chunks -> (train) -> Begin -> Resume -> Chunks -> Verdict, until Bye.

messages.py has its bytes, codec.py what an update is coded by, kept.py what a restart finds, enrol.py
the client's certificate, model.py what is trained.
"""

import argparse
import asyncio
import contextlib
import pathlib
import random
import runpy
import sys

import numpy as np
import websockets.asyncio.client as websocket
from websockets.exceptions import InvalidStatus, WebSocketException

import codec
import enrol
import kept
from enrol import Refused
from messages import digest, encode_plain, frame, layout_digest, make_upload, parse, wire
from model import make_model

PROTOCOL = 3
MESSAGE_BYTES_MAX = 2 << 20
LATER_PAUSE_S = 2
# Those that ask nothing of a client but SGD, with a proximal term perhaps.
STRATEGIES = "fedavg fedprox fedavgm slowmo diloco fedadagrad fedadam fedyogi".split()
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.1, 15
NOTHING = -1, None


class Finished(Exception):
    """The run is over."""


class Client:
    """One member of a federation. `pending` is an upload that has no verdict yet, and so outlives a
    connection; `request` is the newest Offer or Initialise that nothing has been done about,
    `to_evaluate` the versions that are to be measured, `replica` the version that was fetched
    last, and its weights."""

    def __init__(self, folder, data="", models=make_model, is_evaluator=False):
        self.folder = pathlib.Path(folder)
        self.server, self.tls = enrol.load(self.folder)
        self.data, self.models, self.is_evaluator = data, models, is_evaluator
        self.run_key = self.pending = self.request = None
        self.to_evaluate = []
        self.backoff_s = BACKOFF_MIN_S
        self.refusals = 0  # In a row.

    async def run(self):
        """Takes part until the run is over, in as many connections as it needs."""
        while True:
            try:
                await self.serve()
            except Finished:
                return print("the run is over")
            except (OSError, WebSocketException) as error:
                if isinstance(error, InvalidStatus) and error.response.status_code == 401:
                    raise Refused(error.response.body.decode()) from None
                print(f"{error}; trying again")
            await asyncio.sleep(self.backoff_s * random.random())
            self.backoff_s = min(2 * self.backoff_s, BACKOFF_MAX_S)

    async def serve(self):
        """One connection. It ends in an exception: the server's Bye, or what broke it."""
        async with self.connect() as self.ws:
            try:
                await self.shake_hands()
                self.backoff_s = BACKOFF_MIN_S
                await self.upload()  # What the last connection left behind.
                while True:
                    await self.train(await self.next_offer())
                    await self.upload()
            except Refused as reason:  # For the server's history, unless it was the server's.
                with contextlib.suppress(WebSocketException):
                    await self.send(bye=wire.Bye(cause=wire.Bye.LEAVING, reason=str(reason)))
                raise

    def connect(self):
        address = f"wss://{self.server}/v1/session"
        return websocket.connect(address, ssl=self.tls, proxy=None, max_size=MESSAGE_BYTES_MAX)

    async def send(self, payload=b"", **kind):
        await self.ws.send(frame(payload, **kind))

    async def receive(self, *kinds):
        """(header, payload) of the next message of these kinds. Requests that come first are kept
        in `request`."""
        while True:
            header, payload = parse(await self.ws.recv())
            kind = header.WhichOneof("kind")
            if kind == "bye":
                if header.bye.cause == wire.Bye.FINISHED:
                    await self.send(bye=wire.Bye(cause=wire.Bye.LEAVING))
                endings = {wire.Bye.FINISHED: Finished, wire.Bye.REFUSED: Refused}
                raise endings.get(header.bye.cause, ConnectionError)(header.bye.reason)
            if kind in ("offer", "initialise"):
                self.request = header
            if kind == "evaluate":
                self.to_evaluate.append(header.evaluate.version)
            if kind == "offer" and header.offer.initial_digest:
                if self.initial is None or header.offer.initial_digest != digest(self.initial):
                    raise Refused("the run began with other initial weights than this client's")
            if kind in kinds:
                return header, payload

    async def shake_hands(self):
        """Hello, Welcome, Ready. Who this is, its certificate says."""
        self.request, self.to_evaluate = None, []  # The server asks again for what it still wants.
        hello = wire.Hello(protocol=PROTOCOL, software="python", codecs=codec.names())
        hello.evaluator = self.is_evaluator
        await self.send(hello=hello)
        welcome = (await self.receive("welcome"))[0].welcome
        if welcome.strategy.partition(":")[0] not in STRATEGIES:
            raise Refused(f"strategy '{welcome.strategy}' has a client's half that this one lacks")
        if welcome.run_key != self.run_key:
            self.model = self.models(welcome.model, self.data)
            if layout_digest(self.model.layout) != welcome.layout_digest:
                raise Refused(f"the server's {welcome.model} has other tensors than this client's")
            # A run of custom:NAME begins with the weights of a file, which the server has.
            has_initial = hasattr(self.model, "initial")
            self.initial = None
            if has_initial:
                self.initial = np.ascontiguousarray(self.model.initial(welcome.seed), np.float32)
            self.coder = codec.Coder(self.model.layout) if codec.LIBRARY else None
            self.run_key, self.replica = welcome.run_key, NOTHING
            self.pending = kept.load(self.folder, self.run_key, self.coder)
        held_out = getattr(self.model, "held_out", 0)
        if self.is_evaluator and not held_out:
            raise Refused("who evaluates only needs examples that are held out")
        examples = 0 if self.is_evaluator else self.model.examples
        await self.send(ready=wire.Ready(train_examples=examples, holdout_examples=held_out))

    async def next_offer(self):
        """The newest task. Before its first task, a run needs initial weights: one client is asked
        to upload them, and which one makes no difference, as all make the same from the seed."""
        while True:
            while self.to_evaluate:
                await self.evaluate(self.to_evaluate.pop(0))
            if not self.request:
                await self.receive("offer", "initialise", "evaluate")
                continue
            request, self.request = self.request, None
            if request.HasField("offer"):
                return request.offer
            if self.initial is None:
                raise Refused("this model has no initial(seed): the server needs --initial-weights")
            payload = encode_plain(self.initial, self.model.layout)
            self.pending = make_upload(payload, purpose=wire.INITIAL, codec="none")
            await self.upload()

    async def evaluate(self, version):
        """Measures it on the examples that are held out. Who trains is asked for the run's last one;
        who does not, for every one."""
        weights = await self.fetch(version)
        if weights is None:
            gone = wire.Failed(version=version, reason=f"version {version} is gone")
            return await self.send(failed=gone)
        measured = dict(version=version, examples=getattr(self.model, "held_out", 0))
        if measured["examples"]:
            loss, accuracy = await asyncio.to_thread(self.model.evaluate, weights)
            measured.update(loss=loss, accuracy=accuracy)
        await self.send(evaluation=wire.Evaluation(**measured))

    async def train(self, offer):
        """Does one task, and leaves the update pending."""
        if offer.optimizer not in ("", "sgd"):
            reason = f"optimizer '{offer.optimizer}' is unknown here"
            return await self.send(failed=wire.Failed(task=offer.task, reason=reason))
        weights = await self.fetch(offer.version)
        if weights is None or self.request:
            return  # The server has moved on.
        # On a thread, so that the server's pings are answered meanwhile.
        measured = {}
        if offer.evaluate_holdout and getattr(self.model, "held_out", 0):
            held_loss, right = await asyncio.to_thread(self.model.evaluate, weights)
            measured = dict(has_holdout=True, holdout_examples=self.model.held_out)
            measured.update(holdout_loss=held_loss, holdout_accuracy=right)
        update, steps, loss = await asyncio.to_thread(self.model.train, weights, offer)
        print(f"round {offer.round}: trained, loss {loss:.4f}")
        try:
            payload, nmse = await asyncio.to_thread(self.encode, offer, update)
        except ValueError as error:  # Of another size, or not finite.
            print(f"round {offer.round}: {error}")
            return await self.send(failed=wire.Failed(task=offer.task, reason=str(error)))
        task = dict(task=offer.task, round=offer.round, version=offer.version, codec=offer.codec)
        result = dict(examples=self.model.examples, steps=steps, loss=loss, nmse=nmse)
        self.pending = make_upload(payload, **task, **result, **measured)
        kept.save(self.folder, self.run_key, self.pending, self.coder)

    def encode(self, offer, update):
        if self.coder is None:  # Then it said in its Hello that it knows no other.
            return encode_plain(update, self.model.layout), 0.0
        seeds = offer.seed, offer.shared_seed or offer.seed
        return self.coder.encode(offer.codec, offer.round, seeds, update)

    async def fetch(self, version):
        """The weights of a model version; None if the server has it no more. Where the server codes
        its steps (--downlink-codec), they come from the version that is here already."""
        have, weights = self.replica
        if have == version:
            return weights
        fetch = wire.Fetch(version=version)
        if self.coder and weights is not None and have < version:
            fetch.have_base, fetch.have_version = True, have
            fetch.have_digest = digest(weights)
        await self.send(fetch=fetch)
        header, _ = await self.receive("model", "failed")
        if header.HasField("failed"):
            return None
        data = bytearray()
        while len(data) < header.model.bytes:
            _, part = await self.receive("chunk")
            data += part
        self.replica = NOTHING  # Until it is known to be right.
        if header.model.full:
            weights = np.frombuffer(data, np.float32)
        else:
            weights = await asyncio.to_thread(self.add_steps, weights, header.model.deltas, data)
        if digest(weights) != header.model.digest:
            raise ConnectionError(f"model version {version} arrived damaged")
        weights.flags.writeable = False
        self.replica = version, weights
        return weights

    def add_steps(self, weights, deltas, data):
        begin = 0
        for delta in deltas:
            weights = weights + self.coder.decode(bytes(data[begin : begin + delta.bytes]))
            begin += delta.bytes
        return weights

    async def upload(self):
        """Brings in what is pending, until there is a verdict on it."""
        while self.pending:
            begin, payload = self.pending
            await self.send(begin=begin)
            header, _ = await self.receive("resume", "verdict")
            if header.HasField("resume"):
                await self.send_chunks(header.resume)
                header, _ = await self.receive("verdict")
            if header.verdict.outcome == wire.Verdict.LATER:
                await asyncio.sleep(LATER_PAUSE_S)
                continue
            self.pending = None
            if begin.purpose == wire.UPDATE:
                self.settle(header.verdict.outcome, payload)
            if self.request and self.request.offer.task == begin.task:
                self.request = None  # It had been offered again, after a break.
            outcome = wire.Verdict.Outcome.Name(header.verdict.outcome)
            print(f"round {begin.round}: {outcome} {header.verdict.reason}")

    def settle(self, outcome, payload):
        """What did not count goes into the next update, but not what was refused again and again: with
        that the next would be refused, too."""
        if outcome == wire.Verdict.ACCEPTED:
            self.refusals = 0
        elif outcome == wire.Verdict.REFUSED:
            self.refusals += 1
        is_refused_again = outcome == wire.Verdict.REFUSED and self.refusals > 1
        if self.coder and is_refused_again:
            self.coder.residual = None
        elif self.coder and outcome != wire.Verdict.ACCEPTED:
            self.coder.take_back(payload)
        kept.save(self.folder, self.run_key, None, self.coder)

    async def send_chunks(self, resume):
        """From the first byte that the server lacks: after a break it has some already."""
        begin, payload = self.pending
        for at in range(resume.offset, len(payload), resume.chunk_bytes):
            part = payload[at : at + resume.chunk_bytes]
            await self.send(part, chunk=wire.Chunk(transfer=begin.task, offset=at))


def main():
    parser = argparse.ArgumentParser(description="A Tributary client in Python")
    parser.add_argument("--state", type=pathlib.Path, default="python-client-state", help="folder")
    parser.add_argument("--join", metavar="TOKEN", help="join with this token, unless done before")
    parser.add_argument("--data", default="", help=".npz of x [n, 784], y [n], for logistic")
    parser.add_argument("--evaluate-only", action="store_true", help="measure every version")
    parser.add_argument("--models", help="a Python file with make_model(NAME, DATA) of your own")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    try:
        if options.join:
            enrol.join(options.join, options.state)
        models = runpy.run_path(options.models)["make_model"] if options.models else make_model
        client = Client(options.state, options.data, models, options.evaluate_only)
        asyncio.run(client.run())
    except (Refused, OSError) as error:
        sys.exit(f"client.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
