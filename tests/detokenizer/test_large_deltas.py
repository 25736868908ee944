"""A reader that lacks much gets it in parts that a message can hold, and that it can stop between."""

import pytest

from services.detokenizer import batches
from services.detokenizer.batches import Outgoing
from services.detokenizer.core.attachments import Attachment
from services.detokenizer.core.desk import MAX_DELTA_TOKENS
from shared.messages.codec import decoder
from shared.messages.control import Attach
from shared.messages.pipeline import Delta, DeltaBatch
from tests.detokenizer.test_desk import Bench, accept

INBOX = "_INBOX.gateway.1"
decode_batch = decoder(DeltaBatch)


def test_a_late_reader_gets_all_it_lacks_in_parts() -> None:
    bench = Bench()
    num_tokens = 2 * MAX_DELTA_TOKENS + 7
    accept(bench, max_tokens=num_tokens)
    bench.tokens(*(ord("a") + position % 26 for position in range(num_tokens)))
    bench.attach([3])
    spans = [(delta.start, delta.stop) for delta in bench.sent]
    first, second = 3 + MAX_DELTA_TOKENS, 3 + 2 * MAX_DELTA_TOKENS
    assert spans == [(3, first), (first, second), (second, num_tokens)]
    assert [delta.end for delta in bench.sent] == [None, None, "length"]
    assert bench.token_ids() == list(bench.fold.requests["a" * 32].sequences[0].tokens[3:])
    assert bench.text() == "".join(map(chr, bench.token_ids()))


def test_a_large_batch_is_sent_in_several_with_numbers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MAX_BATCH_BYTES", 1000)
    sent: list[DeltaBatch] = []
    outgoing = Outgoing("detokenizer-1", lambda _, data: sent.append(decode_batch(data)), lambda _: 1)
    reader = Attachment(Attach(request_id="a" * 32, inbox=INBOX, number=1), 0.0, [0])
    deltas = [
        Delta(attach=1, choice=0, start=position, stop=position + 1, text="x" * size)
        for position, size in enumerate([300, 300, 300, 300, 5000, 10])
    ]
    outgoing.send([(reader, delta) for delta in deltas], 0.0)
    assert [delta for batch in sent for delta in batch.deltas] == deltas
    assert [batch.number for batch in sent] == list(range(1, len(sent) + 1))
    assert all(len(batch.deltas) == 1 or sum(len(delta.text) for delta in batch.deltas) < 1000 for batch in sent)
    assert (outgoing.num_batches, outgoing.num_deltas) == (len(sent), len(deltas))
