"""A scripted pipeline behind the gateway, on a real bus: tokenizer, scheduler's heartbeat and detokenizer in one.

As in the log, the first request with an id is the only one: logged holds it, by id.

Token number i of a choice has id 100 + i and the text ` w<i>`. A request's script decides how far its text goes and
how it ends; the tests turn the knobs.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from shared import subjects
from shared.bus.client import Bus, Subscription
from shared.bus.nats_log import NatsLog
from shared.errors import RequestError
from shared.messages.codec import decoder, encode
from shared.messages.control import (
    Attach,
    Attached,
    Cancelled,
    CancelRequest,
    Describe,
    Described,
    Detach,
    DetokenizerHeartbeat,
    LeaderHeartbeat,
    ModelCard,
    ShardLoad,
    TokenizerHeartbeat,
)
from shared.messages.packed import pack_tokens
from shared.messages.pipeline import (
    Accepted,
    Delta,
    DeltaBatch,
    End,
    EndReason,
    ErrorBody,
    GenerateRequest,
    Reader,
    TokenLogprob,
)

BEAT_S = 0.1
CARD = ModelCard(name="tiny", version="1", max_model_len=1000, vocab_size=500, created=1700000000, root="tiny-root")

_decode_request = decoder(GenerateRequest)
_decode_attach = decoder(Attach)
_decode_detach = decoder(Detach)
_decode_cancel = decoder(CancelRequest)
_decode_end = decoder(End | Reader)
_decode_describe = decoder(Describe)


def text_of(start: int, stop: int) -> str:
    """The text of tokens start to stop."""
    return "".join(f" w{index}" for index in range(start, stop))


@dataclass
class Script:
    """How a request goes. stops_after: tokens after which it ends for `reason`; holds_at: tokens after which nothing
    comes until release() (None: never holds). tokens_per_delta: how many travel together."""

    num_tokens: int = 4
    reason: EndReason = "length"
    error: ErrorBody | None = None
    holds_at: int | None = None
    tokens_per_delta: int = 1
    refusal: RequestError | None = None
    shard: str = "s0"
    text: Callable[[int, int], str] = text_of


@dataclass
class Detokenizer:
    """One incarnation. is_silent: it takes attaches and says nothing, as a stopped process would."""

    name: str
    numbers: dict[str, int] = field(default_factory=dict)
    is_silent: bool = False
    loses_batches: int = 0


class StandIn:
    """Create with StandIn.start. requests: all GenerateRequests seen, in order; waiting: questions about requests that
    are not logged."""

    def __init__(self, bus: Bus, shard: str) -> None:
        self.bus = bus
        self.shard = shard
        self.script = Script()
        self.num_workers = 1
        self.num_running = 0
        self.num_frames = 0
        self.frames_per_beat = 0
        self.is_log_full = False
        self.beats: set[str] = {"leader", "tokenizer", "detokenizer"}
        self.cards = [CARD]
        self.requests: list[GenerateRequest] = []
        self.attaches: list[Attach] = []
        self.detaches: list[Detach] = []
        self.cancels: list[str] = []
        self.ends: list[str] = []
        self.readers: list[tuple[str, str, bool]] = []
        self.logged: dict[str, GenerateRequest] = {}
        self.forgotten: set[str] = set()
        self.ignored_infers = 0
        self.refused_prompts: dict[object, RequestError] = {}
        self.descriptions_left = float("inf")
        self.waiting: dict[str, list[tuple[Describe, str]]] = {}
        self.detokenizer = Detokenizer("detokenizer-1")
        self._scripts: dict[str, Script] = {}
        self._live: dict[int, Attach] = {}
        self._subscriptions: list[Subscription] = []
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def start(cls, url: str, shard: str = "s0") -> "StandIn":
        """Listen on a bus of its own."""
        stand_in = cls(await Bus.connect(url, "standin"), shard)
        await NatsLog.open(stand_in.bus, shard)
        await stand_in.bus.subscribe(subjects.log_subject(shard, "end"), stand_in._on_end_record)
        await stand_in.listen()
        stand_in._tasks = [asyncio.create_task(stand_in._beat())]
        return stand_in

    async def listen(self) -> None:
        """Take requests and attaches."""
        pairs = (
            (subjects.INFER, self._on_infer),
            (subjects.attach(self.shard), self._on_attach),
            (subjects.attach("s1"), self._on_attach),
            (subjects.attach_direct(self.shard, "*"), self._on_attach_direct),
            (subjects.detach(self.shard), self._on_detach),
            (subjects.describe(self.shard), self._on_describe),
            (subjects.CANCEL, self._on_cancel),
        )
        for subject, handler in pairs:
            self._subscriptions.append(await self.bus.subscribe(subject, handler))

    async def deafen(self) -> None:
        """Take nothing any more: requests find nobody."""
        for subscription in self._subscriptions:
            await subscription.unsubscribe()
        self._subscriptions.clear()
        await self.bus.flush()

    async def stop(self) -> None:
        """End it."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.bus.close()

    def restart_detokenizer(self, name: str) -> None:
        """The old incarnation is dead with all it knew; a new one serves from now on."""
        self._live.clear()
        self.detokenizer = Detokenizer(name)

    def let_go(self) -> None:
        """Hold no request any more; readers learn of it when they attach again."""
        for script in [self.script, *self._scripts.values()]:
            script.holds_at = None

    def release(self) -> None:
        """Let held requests go on to their end."""
        self.let_go()
        for attach in list(self._live.values()):
            self._serve(attach)

    def end(self, request_id: str, reason: EndReason) -> None:
        """Tell the readers of a request that it has ended before its first token."""
        for attach in [each for each in self._live.values() if each.request_id == request_id]:
            self._publish(attach, Delta(attach=attach.number, choice=0, start=0, stop=0, text="", end=reason))

    def drop_batches(self, count: int) -> None:
        """The next batches are lost on the way."""
        self.detokenizer.loses_batches = count

    # ---- handlers

    def _on_infer(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        request: GenerateRequest = _decode_request(data)
        self.requests.append(request)
        if self.ignored_infers:
            self.ignored_infers -= 1
            return
        script = self.script
        prompt = request.prompt if isinstance(request.prompt, str) else None
        refusal = script.refusal or self.refused_prompts.get(prompt)
        if refusal is not None:
            self.bus.publish(reply, encode(refusal.refused()))
            return
        request_id = request.request_id or ""
        self.log(request)
        wanted = request.params.get("return_token_ids")
        accepted = Accepted(
            request_id, num_prompt_tokens=3, shard=script.shard, prompt_token_ids=[7, 8, 9] if wanted else None
        )
        self.bus.publish(reply, encode(accepted))
        for attach in list(self._live.values()):
            if attach.request_id == request_id and script.shard == self.shard:
                self._serve(attach)

    def log(self, request: GenerateRequest) -> None:
        """It is accepted, and goes as the script of this moment says."""
        request_id = request.request_id or ""
        self.logged.setdefault(request_id, request)
        self._scripts.setdefault(request_id, self.script)
        for describe, reply in self.waiting.pop(request_id, ()):
            self._describe(describe, reply)

    def _on_describe(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        if self.descriptions_left < 1:
            return
        self.descriptions_left -= 1
        describe: Describe = _decode_describe(data)
        request_id = describe.request_id
        if describe.wait_s and request_id not in self.logged and request_id not in self.forgotten:
            self.waiting.setdefault(request_id, []).append((describe, reply))
            self._tasks.append(asyncio.create_task(self._end_waiting(request_id, describe.wait_s)))
        else:
            self._describe(describe, reply)

    async def _end_waiting(self, request_id: str, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        for describe, reply in self.waiting.pop(request_id, ()):
            self._describe(describe, reply)

    def _describe(self, describe: Describe, reply: str) -> None:
        request = self.logged.get(describe.request_id)
        if request is None or describe.request_id in self.forgotten:
            is_forgotten = describe.request_id in self.forgotten
            described = Described(detokenizer=self.detokenizer.name, found=False, forgotten=is_forgotten, live=True)
        else:
            created_s = request.created_s or 0.0
            described = Described(
                detokenizer=self.detokenizer.name,
                found=True,
                live=True,
                num_choices=int(request.params.get("n") or 1),
                num_prompt_tokens=3,
                model=request.model,
                created_ns=int(created_s * 1e9),
                deadline_ns=int((created_s + request.deadline_s) * 1e9),
                owner=request.owner,
                keep_s=request.keep_s,
                origin=request.origin,
                prompt_token_ids=pack_tokens([7, 8, 9]) if describe.with_prompt else b"",
            )
        self.bus.publish(reply, encode(described))

    def _on_attach(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        attach: Attach = _decode_attach(data)
        self.attaches.append(attach)
        if self.detokenizer.is_silent:
            return
        self._live[attach.number] = attach
        self.bus.publish(reply, encode(Attached(detokenizer=self.detokenizer.name)))
        self._serve(attach)

    def _on_attach_direct(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        if subject.endswith(self.detokenizer.name):
            was_silent, self.detokenizer.is_silent = self.detokenizer.is_silent, False
            self._on_attach(subject, reply, data, headers)
            self.detokenizer.is_silent = was_silent

    def _on_detach(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        detach: Detach = _decode_detach(data)
        self.detaches.append(detach)
        self._live.pop(detach.number, None)

    def _on_cancel(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        request_id = _decode_cancel(data).request_id
        self.cancels.append(request_id)
        self.bus.publish(reply, encode(Cancelled(request_id=request_id)))

    def _on_end_record(self, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        end: End | Reader = _decode_end(data)
        if isinstance(end, Reader):
            self.readers.append((end.request_id, end.gateway, end.reads))
        elif (end.reason, end.choice, end.position) == ("cancel", -1, None):
            self.ends.append(end.request_id)

    # ---- text

    def _serve(self, attach: Attach) -> None:
        """Send what this reader lacks, one batch per delta."""
        script = self._scripts.get(attach.request_id)
        if script is None:
            return  # not accepted yet
        request = self.logged[attach.request_id]
        num_choices = int(request.params.get("n") or 1)
        positions = list(attach.positions) or [0] * num_choices
        limit = script.num_tokens if script.holds_at is None else min(script.holds_at, script.num_tokens)
        while any(position < limit for position in positions):
            for choice, start in enumerate(positions):
                stop = min(limit, start + script.tokens_per_delta)
                if stop > start:
                    is_last = stop == script.num_tokens
                    self._publish(attach, self._delta(attach, script, request, choice, start, stop, is_last))
                    positions[choice] = stop
        if limit < script.num_tokens:
            self._live[attach.number] = Attach(
                request_id=attach.request_id, inbox=attach.inbox, number=attach.number, positions=tuple(positions)
            )
        elif script.num_tokens == 0 or all(start == limit for start in attach.positions):
            for choice in range(num_choices):
                self._publish(attach, self._delta(attach, script, request, choice, limit, limit, True))

    def _delta(
        self,
        attach: Attach,
        script: Script,
        request: GenerateRequest,
        choice: int,
        start: int,
        stop: int,
        is_last: bool,
    ) -> Delta:
        wants_logprobs = request.params.get("logprobs") not in (None, False)
        rows = [TokenLogprob(f" w{i}", 100 + i, -0.5, 3 * i, ((" x", -1.5, 7),)) for i in range(start, stop)]
        return Delta(
            attach=attach.number,
            choice=choice,
            start=start,
            stop=stop,
            text=script.text(start, stop),
            token_ids=pack_tokens(range(100 + start, 100 + stop)),
            logprobs=rows if wants_logprobs else [],
            end=script.reason if is_last else None,
            error=script.error if is_last else None,
            num_prompt_tokens=3 if is_last else 0,
        )

    def _publish(self, attach: Attach, delta: Delta) -> None:
        number = self.detokenizer.numbers.get(attach.inbox, 0) + 1
        self.detokenizer.numbers[attach.inbox] = number
        if self.detokenizer.loses_batches:
            self.detokenizer.loses_batches -= 1
            return
        batch = DeltaBatch(source=self.detokenizer.name, number=number, deltas=[delta])
        self.bus.publish(attach.inbox, encode(batch))

    async def _beat(self) -> None:
        while True:
            if "leader" in self.beats:
                self.num_frames += self.frames_per_beat
                load = ShardLoad(
                    num_workers=self.num_workers,
                    num_running=self.num_running,
                    log_full=self.is_log_full,
                    num_folded_frames=self.num_frames,
                )
                beat = LeaderHeartbeat(shard=self.shard, leader="scheduler-1", takeover=1, load=load)
                self.bus.publish(subjects.leader_heartbeat(self.shard), encode(beat))
            if "tokenizer" in self.beats:
                beat_of_tokenizer = TokenizerHeartbeat(tokenizer="tokenizer-1", models=self.cards)
                self.bus.publish(subjects.TOKENIZER_HEARTBEAT, encode(beat_of_tokenizer))
            if "detokenizer" in self.beats:
                beat_of_detokenizer = DetokenizerHeartbeat(detokenizer=self.detokenizer.name, folded=0)
                self.bus.publish(subjects.detokenizer_heartbeat(self.shard), encode(beat_of_detokenizer))
                for inbox, number in self.detokenizer.numbers.items():
                    if not self.detokenizer.is_silent:
                        batch = DeltaBatch(source=self.detokenizer.name, number=number)
                        self.bus.publish(inbox, encode(batch))
            await asyncio.sleep(BEAT_S)
