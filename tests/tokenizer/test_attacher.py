"""A native client that asks or attaches again on the same inbox is read to once (rule 15)."""

from shared import subjects
from shared.messages.codec import decoder
from shared.messages.control import Detach
from tests.servers import NatsServer
from tests.tokenizer.running_service import ASK, REQUEST_ID, Running, memory_log, running
from tests.waiting import until

decode_detach = decoder(Detach)


def detaches(run: Running) -> list[Detach]:
    return [decode_detach(data) for data in run.detached]


async def test_every_attachment_first_ends_the_older_ones_of_its_inbox(nats_server: NatsServer) -> None:
    async with running(nats_server, memory_log()) as run:
        inbox = await run.ask(subjects.INFER, {**ASK, "request_id": REQUEST_ID})
        await until(lambda: len(run.attaches) == 1)
        await run.ask(subjects.INFER, {**ASK, "request_id": REQUEST_ID}, reply=inbox.subject)
        await run.ask(subjects.CLIENT_ATTACH, {"request_id": REQUEST_ID, "positions": [3]}, reply=inbox.subject)
        await until(lambda: len(run.attaches) == 3 and len(run.detached) == 3)
        for attach, detach in zip(run.attaches, detaches(run), strict=True):
            assert (detach.request_id, detach.inbox) == (REQUEST_ID, inbox.subject)
            assert detach.number < attach.number
        for earlier, detach in zip(run.attaches, detaches(run)[1:], strict=False):
            assert earlier.number <= detach.number
        assert {attach.inbox for attach in run.attaches} == {inbox.subject}


async def test_an_attempt_without_an_answer_is_ended_by_the_next(nats_server: NatsServer) -> None:
    """A stopped detokenizer may take it up when it wakes."""
    async with running(nats_server, memory_log(), attach=False) as run:
        stuck: list[bytes] = []
        subject = subjects.attach("s0")
        await run.bus.subscribe(subject, lambda _s, _r, data, _h: stuck.append(data), subjects.DETOKENIZER_QUEUE)
        await run.start_detokenizer(by_queue=False)
        inbox = await run.ask(subjects.INFER, ASK)
        await until(lambda: run.attaches and len(run.detached) >= 2)
        assert len(stuck) == 1
        (served,) = run.attaches
        ended = detaches(run)[1]
        assert (ended.inbox, served.inbox) == (inbox.subject, inbox.subject)
        assert detaches(run)[0].number < ended.number < served.number
