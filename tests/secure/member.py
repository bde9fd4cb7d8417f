# SPDX-License-Identifier: Apache-2.0
"""member.py STATE_FOLDER DATA.npz SITE_KEY MEMBERS [TOKEN]: a second implementation of a member of masked
rounds, from docs/design/secure-aggregation.md. The connection and the model are those of
examples/python-client. SITE_KEY is a file of `fl-client site-key`; MEMBERS is the member list that it
trusts, or the key of a signer of it, in hexadecimal digits.

It keeps its attempts in memory only: a member that is killed is gone from the attempt. What it must never
forget is on its disk: which list it goes by, and the versions that it has contributed to."""

import asyncio
import hashlib
import os
import pathlib
import sys

import lanes
import masks
import numpy as np

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python-client"))
import client
import wire_pb2 as wire
from client import Ended

COHORT_MIN, COHORT_MAX = 3, 128
STAGES = ["secure_cohort", "secure_inbox", "secure_survivors", "secure_ask"]
FOR_ONE_CLIENT = ("task", "seed", "deadline_ms", "evaluate_holdout", "initial_digest", "reference")


class Refused(Exception):
    """What the server says is not what this member takes part in."""


def check(is_right, reason):
    if not is_right:
        raise Refused(reason)


def read_site_key(path):
    title, secret = pathlib.Path(path).read_text().split()
    check(title == "tributary-key-1", f"{path} is not the file of a site key")
    return masks.site_key(bytes.fromhex(secret))


def without(offer, fields):
    rest = wire.Offer.FromString(offer.SerializeToString())
    for field in fields:
        rest.ClearField(field)
    return rest


def training_of(offer):
    """What must not change from attempt to attempt."""
    return without(offer, ("secure", "deadline_ms", "evaluate_holdout", "initial_digest"))


class MemberList:
    def __init__(self, text):
        lines = [line.split("#")[0].split() for line in text.splitlines()]
        title, *lines = [line for line in lines if line]
        check(title == ["tributary-members", "1"], "this is no member list")
        self.facts = {word: values[0] for word, *values in lines if len(values) == 1}
        named = [line for line in lines if len(line) == 3]
        self.signers, self.members, self.signatures = [
            [(name, bytes.fromhex(value)) for word, name, value in named if word == what]
            for what in ("signer", "member", "signature")
        ]
        check(len(self.facts) + len(named) == len(lines), "the member list has other words")
        self.site_keys = dict(self.members)
        keys = [key for _, key in self.signers + self.members]
        check(len(set(keys)) == len(keys), "a key is in the member list twice")
        for names in self.signers, self.members, self.signatures:
            check(len(dict(names)) == len(names), "a name is in the member list twice")
        self.least, self.needs = int(self.facts["smallest-cohort"]), int(self.facts["needs"])
        check(COHORT_MIN <= self.least <= len(self.members), "the smallest cohort can't be one")
        check(1 <= self.needs <= len(self.signers), "so many can't sign")

    def digest(self):
        counts = [len(self.signers), len(self.members)]
        numbers = [self.facts["epoch"], self.least, self.needs, *counts]
        parts = [b"tributary-members", b"1", " ".join(map(str, numbers)).encode()]
        digest = masks.digest(*parts, bytes.fromhex(self.facts.get("before", "")))
        for name, key in self.signers + self.members:
            digest = masks.digest(digest, name.encode(), key)
        return digest

    def check_signed(self):
        signed, keys = masks.digest(b"tributary member list 1", self.digest()), dict(self.signers)
        for name, signature in self.signatures:
            is_right = name in keys and masks.is_signed(keys[name], signed, signature)
            check(is_right, f"the member list is not signed by '{name}'")
        check(len(self.signatures) >= self.needs, "too few have signed the member list")

    def check_trusted(self, trusted):
        """`trusted`: a list's text, or a signer's key."""
        if len(trusted) != 64:
            check(MemberList(trusted).digest() == self.digest(), "this is another member list")
            return
        signers = [name for name, key in self.signers if key.hex() == trusted]
        check(signers and signers[0] in dict(self.signatures), "the trusted signer has not signed")


class Attempt:
    """An attempt as far as it has come. `said` is what this member has said last."""

    def __init__(self, member, offer, coded, loss):
        check(offer.secure.attempt > 0, "the offer is of a run in the clear")
        is_ours = offer.secure.members == member.list.digest()
        check(is_ours, "the offer is for another member list")
        self.offer, self.coded, self.loss, self.member = offer, coded, loss, member
        self.subject = dict(task=offer.task, attempt=offer.secure.attempt)
        self.context = member.context(offer)
        self.secrets, self.payload, self.taken = masks.Secrets(os.urandom(32)), b"", {}
        signed = masks.keys_digest(self.context, member.name, self.secrets.keys)
        keys = dict(zip(("mask_key", "share_key", "self_digest"), self.secrets.keys))
        keys |= dict(signature=member.site.sign(signed), cohort_min=member.least)
        self.said = dict(secure_keys=wire.SecureKeys(**self.subject, **keys))

    def take(self, kind, message):
        """Returns whether there is something new to say."""
        if dict(task=message.task, attempt=message.attempt) != self.subject:
            return False
        if kind in self.taken:  # A second SecureAsk is answered by what is revealed already.
            is_same = kind == "secure_ask" or message == self.taken[kind]
            check(is_same, f"it was told something else before by {kind}")
            return False
        check(kind == STAGES[len(self.taken)], f"{kind} comes too early")
        self.said = getattr(self, kind)(message)
        self.taken[kind] = message
        return True

    def check_rest(self, indices, within, what):
        """Whether so many are enough to go on with, this member among them."""
        is_list = indices == sorted(set(indices)) and set(indices) <= set(within)
        check(is_list, f"the {what} are not a list of members")
        least = max(masks.consent_threshold(self.n), self.threshold, self.member.least)
        check(len(indices) >= least, f"{len(indices)} {what} are too few of {self.n}")
        check(self.own in indices, f"this member is not among the {what}")

    def secure_cohort(self, message):
        self.cohort, self.n = message.members, len(message.members)
        self.threshold = masks.share_threshold(self.n)
        names, site_keys = [one.name for one in self.cohort], self.member.list.site_keys
        check(max(COHORT_MIN, self.member.least) <= self.n <= COHORT_MAX, f"a cohort of {self.n}")
        check(names == sorted(set(names)), "the cohort's names are not in order")
        check(set(names) <= set(site_keys), "somebody in the cohort is not in the member list")
        members = []
        for one in self.cohort:
            keys = one.mask_key, one.share_key, one.self_digest
            digest = masks.keys_digest(self.context, one.name, keys)
            is_signed = masks.is_signed(site_keys[one.name], digest, one.signature)
            check(is_signed, f"'{one.name}' has not signed these keys for this attempt")
            members.append((one.name, site_keys[one.name], *keys))
        all_keys = [key for _, *keys in members for key in keys]
        check(len(set(all_keys)) == len(all_keys), "a key is in the cohort twice")
        check(self.member.name in names, "this member is not in the cohort")
        self.own = names.index(self.member.name)
        check(members[self.own][2:] == self.secrets.keys, "these are not this member's keys")
        self.transcript = masks.transcript_of(self.context, members)
        sealed = [
            masks.seal(
                self.sealing_key(self.own, j),
                self.secrets.shares(self.threshold, self.transcript, j + 1),
                self.transcript,
            )
            for j in range(self.n)
            if j != self.own
        ]
        return dict(secure_shares=wire.SecureShares(**self.subject, sealed=sealed))

    def sealing_key(self, giver, taker):
        other = self.cohort[taker if giver == self.own else giver].share_key
        return masks.sealing_key(self.secrets.share, other, self.transcript, giver, taker)

    def secure_inbox(self, message):
        self.sharers, self.entrusted = list(message.sharers), {}
        self.check_rest(self.sharers, range(self.n), "sharers")
        self.others = [j for j in self.sharers if j != self.own]
        check(len(message.sealed) == len(self.others), "shares are missing")
        for giver, sealed in zip(self.others, message.sealed):
            opened = masks.unseal(self.sealing_key(giver, self.own), sealed, self.transcript)
            if opened and len(opened) == 64:  # Else it goes on without them.
                self.entrusted[giver] = dict(mask=opened[:32], self=opened[32:])
        check(self.entrusted, "nobody's shares can be opened")
        self.payload = self.masked_words()
        facts = {name: getattr(self.offer, name) for name in ("round", "version", "codec")}
        facts |= dict(bytes=len(self.payload), digest=client.digest(self.payload))
        unreadable = [j for j in self.others if j not in self.entrusted]
        return dict(begin=wire.UploadBegin(**self.subject, **facts, unreadable=unreadable))

    def masked_words(self):
        words = self.coded.words(self.n, self.loss)

        def mask(key):
            return np.frombuffer(masks.keystream(key, words.nbytes), "<u8")

        words += mask(masks.self_key(self.secrets.self, self.transcript))
        for j in self.others:
            pair = mask(masks.pair_key(self.secrets.mask, self.cohort[j].mask_key, self.transcript))
            words = words + pair if self.own < j else words - pair
        return words.astype("<u8").tobytes()

    def consent_digest(self):
        return masks.consent_digest(self.transcript, self.sharers, self.survivors)

    def secure_survivors(self, message):
        self.survivors = list(message.survivors)
        self.check_rest(self.survivors, self.sharers, "survivors")
        self.member.contribute()
        signature = self.member.site.sign(self.consent_digest())
        return dict(secure_consent=wire.SecureConsent(**self.subject, signature=signature))

    def secure_ask(self, message):
        signed, signers = self.consent_digest(), [one.member for one in message.consents]
        is_list = len(set(signers)) == len(signers) and set(signers) <= set(self.sharers)
        check(is_list, "the signatures are not those of sharers, each once")
        check(len(signers) >= masks.consent_threshold(self.n), "too few have signed the survivors")
        for one in message.consents:
            name = self.cohort[one.member].name
            is_signed = masks.is_signed(self.member.list.site_keys[name], signed, one.signature)
            check(is_signed, f"'{name}' has not signed these survivors")
        which = {j: "self" if j in self.survivors else "mask" for j in self.others}
        shares = [self.entrusted[j][which[j]] if j in self.entrusted else b"" for j in self.others]
        reveal = dict(self_seed=self.secrets.self, shares=shares)
        return dict(secure_reveal=wire.SecureReveal(**self.subject, **reveal))


class Member(client.Client):
    """`attempt`: that of the update without a verdict. `weights`: the digest of what it was trained from."""

    def __init__(self, folder, model, site, trusted):
        super().__init__(folder, model)
        self.site, self.trusted, self.attempt, self.terms = site, trusted, None, None
        self.residual = np.zeros(model.size, np.float32)

    async def send(self, payload=b"", **kind):
        # The server hears nothing of the data, and is told what this client can do.
        if "hello" in kind:
            kind["hello"].codecs[:] = ["lanes"]
            kind["hello"].features.names.append("secure-aggregation")
        if "ready" in kind:
            kind["ready"] = wire.Ready(train_examples=1)
        await super().send(payload, **kind)

    async def receive(self, *kinds):
        header, payload = await super().receive(*kinds)
        if header.HasField("welcome"):
            self.enter(header.welcome)
        return header, payload

    def enter(self, welcome):
        if not welcome.members:
            raise Ended("this run is in the clear, and this client takes part in masked runs only")
        try:
            self.list = MemberList(welcome.members)
            self.list.check_signed()
            if "members" in self.kept:
                known = self.kept["members"] == self.list.digest().hex()
                check(known, "the member list has changed: a person must look at it")
            else:
                self.list.check_trusted(self.trusted)
            own = self.list.site_keys.get(welcome.name)
            check(own == masks.public_of(self.site), "the list has another site key for this name")
        except (Refused, KeyError, ValueError) as error:
            raise Ended(f"the server's member list: {error}") from None
        self.keep(members=self.list.digest().hex())
        texts = welcome.run_key, welcome.model, welcome.strategy
        terms = [*(text.encode() for text in texts), welcome.layout_digest]
        if terms != self.terms:
            self.terms, self.attempt = terms, None
        self.name, self.least = welcome.name, self.list.least

    def context(self, offer):
        common = without(offer, FOR_ONE_CLIENT).SerializeToString(deterministic=True)
        return masks.digest(b"tributary context 1", *self.terms, self.weights, common)

    def check_version(self):
        is_new = self.weights.hex() not in self.kept.get("contributions", [])
        check(is_new, "this client has contributed to this version before")

    def contribute(self):
        self.check_version()
        self.keep(contributions=[*self.kept.get("contributions", []), self.weights.hex()])

    async def work(self, offer):
        self.offer = None
        if self.have[0] != offer.version:
            await self.fetch(offer.version)
        if self.have[0] != offer.version or self.offer:
            return
        self.weights = hashlib.sha256(self.have[1].tobytes()).digest()
        try:
            self.check_version()
            update, _, loss = await asyncio.to_thread(self.model.train, self.have[1], offer)
            coded = lanes.Coded(update + self.residual, [self.model.size], offer)
            self.attempt = Attempt(self, offer, coded, loss)
        except Exception as error:
            # Only what was refused is said: an error of the training may have figures of the data in it.
            reason = str(error) if isinstance(error, Refused) else "its training has failed"
            await self.send(failed=wire.Failed(task=offer.task, reason=reason))
            raise Ended(f"round {offer.round}: {type(error).__name__}: {error}") from error

    async def upload(self):
        """Takes part in the attempt, from what was said last on, until its update has a verdict."""
        if self.attempt:
            await self.send(**self.attempt.said)
        while self.attempt:
            header, _ = await self.receive("offer", "resume", "verdict", *STAGES)
            kind = header.WhichOneof("kind")
            try:
                await self.answer(kind, getattr(header, kind))
            except (Refused, ValueError) as error:  # ValueError: a key of small order.
                task = self.attempt.offer.task
                await self.send(failed=wire.Failed(task=task, reason=str(error)))
                raise Ended(f"this member leaves the attempt: {error}") from error

    async def answer(self, kind, message):
        attempt = self.attempt
        if kind == "offer":
            if message.task != attempt.offer.task:
                self.attempt = None  # The round went on without it.
                return
            self.offer = None
            is_next = message.secure.attempt > attempt.offer.secure.attempt
            if is_next and "secure_survivors" not in attempt.taken:  # Else the sum may have this update.
                is_same = training_of(message) == training_of(attempt.offer)
                check(is_same, "the next attempt would have trained otherwise")
                self.attempt = Attempt(self, message, attempt.coded, attempt.loss)
                await self.send(**self.attempt.said)
        elif kind == "resume":
            step = min(message.chunk_bytes, client.CHUNK_BYTES)
            for at in range(message.offset, len(attempt.payload), step):
                chunk = wire.Chunk(transfer=message.task, offset=at)
                await self.send(attempt.payload[at : at + step], chunk=chunk)
        elif kind != "verdict":
            if attempt.take(kind, message):
                await self.send(**attempt.said)
        elif message.outcome == wire.Verdict.LATER:
            await asyncio.sleep(client.LATER_S)
            await self.send(**attempt.said)
        elif message.outcome != wire.Verdict.HELD and message.task == attempt.offer.task:
            self.settle(message.outcome)

    def settle(self, outcome):
        offer, coded = self.attempt.offer, self.attempt.coded
        if offer.codec.endswith("+ef"):
            self.residual = coded.lost if outcome == wire.Verdict.ACCEPTED else coded.update
        self.attempt = None
        print(f"round {offer.round}: {wire.Verdict.Outcome.Name(outcome)}")


def main(folder, data, site, trusted, *token):
    trusted = trusted if len(trusted) == 64 else pathlib.Path(trusted).read_text()
    member = Member(pathlib.Path(folder), client.Line(data), read_site_key(site), trusted)
    asyncio.run(member.run(*token))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except (Ended, Refused, OSError, KeyError, ValueError) as error:
        sys.exit(f"member.py: {str(error)!r}" if str(error) else 0)
