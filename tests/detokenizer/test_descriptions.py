"""What a detokenizer tells of a request, at once or when it is folded."""

from services.detokenizer.core.descriptions import MAX_WAIT_S, Descriptions
from shared.log.fold import KEEP_FINISHED_NS
from shared.messages.control import Describe, Described
from shared.messages.pipeline import Done, End, Fence
from tests.log.records import FoldUnderTest, request

RID = "a" * 32
REPLY = "_INBOX.gateway.1"


class Bench:
    def __init__(self) -> None:
        self.fold = FoldUnderTest()
        self.fold.feed(Fence(kind="takeover", leader="s1"))
        self.descriptions = Descriptions(self.fold, "detokenizer-1")

    def ask(self, now: float = 0.0, live: bool = True, **fields: object) -> list[Described]:
        describe = Describe(request_id=RID, **fields)  # type: ignore[arg-type]
        return [answer for _, answer in self.descriptions.on_describe(describe, REPLY, now, live=live)]

    def tick(self, now: float, live: bool = True) -> list[Described]:
        return [answer for _, answer in self.descriptions.tick(now, live=live)]


def test_a_folded_request_is_described_at_once() -> None:
    bench = Bench()
    bench.fold.feed(request(RID, n=2))
    (described,) = bench.ask(with_prompt=True)
    logged = bench.fold.requests[RID].request
    assert described == Described(
        detokenizer="detokenizer-1",
        found=True,
        live=True,
        num_choices=2,
        num_prompt_tokens=len(logged.prompt_token_ids) // 4,
        model=logged.model,
        created_ns=logged.created_ns,
        deadline_ns=logged.deadline_ns,
        prompt_token_ids=logged.prompt_token_ids,
    )
    assert bench.ask()[0].prompt_token_ids == b""


def test_who_does_not_wait_is_told_at_once_and_how_much_that_is_worth() -> None:
    bench = Bench()
    assert [(answer.found, answer.live) for answer in (*bench.ask(), *bench.ask(live=False))] == [
        (False, True),
        (False, False),
    ]


def test_who_waits_is_answered_by_the_request_itself() -> None:
    bench = Bench()
    assert bench.ask(wait_s=1.0) == bench.ask(wait_s=2.0) == []
    bench.fold.feed(request(RID))
    assert [(reply, answer.found) for reply, answer in bench.descriptions.on_request(RID)] == [(REPLY, True)] * 2
    assert list(bench.descriptions.on_request(RID)) == []


def test_nobody_waits_longer_than_asked_or_allowed() -> None:
    bench = Bench()
    bench.ask(now=10.0, wait_s=1.0)
    bench.ask(now=10.0, wait_s=1000.0)
    assert bench.tick(10.9) == []
    assert [answer.found for answer in bench.tick(11.0)] == [False]
    assert [answer.live for answer in bench.tick(10.0 + MAX_WAIT_S, live=False)] == [False]
    assert bench.tick(1e6) == []


def test_a_snapshot_may_bring_the_request() -> None:
    bench = Bench()
    bench.ask(wait_s=1.0)
    bench.fold.feed(request(RID))
    assert [answer.found for answer in bench.tick(0.5)] == [True]


def test_what_is_forgotten_and_what_was_cancelled_before_it_came() -> None:
    bench = Bench()
    bench.fold.feed(End(request_id=RID, reason="cancel"))
    assert [(answer.found, answer.forgotten) for answer in bench.ask()] == [(False, False)]
    bench.fold.feed(request(RID))
    bench.fold.feed(Done(request_id=RID, positions=(0,), reasons=("cancel",)))
    assert bench.ask()[0].found
    bench.fold.clock_ns += KEEP_FINISHED_NS + 1
    bench.fold.feed(Fence(kind="keep", leader="s1"))
    assert RID not in bench.fold.requests
    assert [(answer.found, answer.forgotten) for answer in bench.ask(wait_s=1.0)] == [(False, True)]
