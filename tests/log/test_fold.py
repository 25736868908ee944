"""The rules that live in the fold, by their numbers in the protocol."""

import msgspec
import pytest

from shared.log import snapshot
from shared.log.fold import KEEP_FINISHED_NS, KEEP_RESUMABLE_NS, KEEP_TOMBSTONE_NS, LogGapError
from shared.messages.codec import encode
from shared.messages.pipeline import Done, End, Fence, Reader, RowError, RowLogprobs, Rows
from tests.log.records import EOS, PROMPT, SECOND_NS, FoldUnderTest, prefix_hash, request, rows


@pytest.fixture
def fold() -> FoldUnderTest:
    return FoldUnderTest()


def takeover(fold: FoldUnderTest, leader: str = "s1") -> int:
    fold.feed(Fence(kind="takeover", leader=leader))
    return fold.takeover


def test_rule_01_rows_count_only_under_their_workers_own_epoch(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    (first,) = fold.accept(request("a" * 32))
    (second,) = fold.accept(request("b" * 32))
    fold.feed(rows("w1", epoch, 1, fold.row(first, 10)))
    fold.feed(Fence(kind="worker", leader="s1", worker="w1"))
    assert fold.epoch_of("w1") == fold.seq
    assert fold.epoch_of("w2") == epoch, "another worker's fence moves nobody else's epoch"
    stale = fold.feed(rows("w1", epoch, 2, fold.row(first, 11)))
    assert not stale.counted and list(first.tokens) == [10]
    assert fold.feed(rows("w2", epoch, 1, fold.row(second, 20))).counted
    assert fold.feed(rows("w1", fold.epoch_of("w1"), 1, fold.row(first, 12))).counted
    assert list(first.tokens) == [10, 12]


def test_rule_01_a_takeover_fences_all_workers_and_steps_restart(fold: FoldUnderTest) -> None:
    old = takeover(fold)
    (sequence,) = fold.accept(request())
    fold.feed(rows("w1", old, 1, fold.row(sequence, 10)))
    new = takeover(fold, "s2")
    assert fold.leader == "s2" and fold.epoch_of("w1") == new > old
    assert not fold.feed(rows("w1", old, 2, fold.row(sequence, 11))).counted
    assert fold.feed(rows("w1", new, 1, fold.row(sequence, 12))).counted


def test_rule_01_a_row_counts_only_at_the_next_position(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    (sequence,) = fold.accept(request())
    fold.feed(rows("w1", epoch, 1, (sequence.id, 1, 10, sequence.prefix_hash)))
    assert fold.counts["row_missing"] == 1 and not sequence.tokens
    fold.feed(rows("w1", epoch, 2, fold.row(sequence, 10)))
    fold.feed(rows("w1", epoch, 3, (sequence.id, 0, 11, sequence.prefix_hash)))
    assert fold.counts["row_repeated"] == 1 and list(sequence.tokens) == [10]


def test_rule_02_keep_moves_the_newest_fence_and_no_epoch(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    fold.feed(Fence(kind="keep", leader="s1"))
    assert fold.newest_fence == fold.seq and fold.takeover == epoch and fold.epoch_of("w1") == epoch


def test_rule_02_a_fence_that_nobody_can_read_is_the_newest_all_the_same(fold: FoldUnderTest) -> None:
    """The server compares with it; a fold that overlooked it could never append a fence again."""
    epoch = takeover(fold)
    assert fold.apply("fence", b"\xc1", fold.seq + 1, fold.clock_ns).record is None
    assert fold.newest_fence == fold.seq and fold.takeover == epoch


def test_rule_04_frames_fold_in_step_order_without_gaps(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    (sequence,) = fold.accept(request())
    first = rows("w1", epoch, 1, fold.row(sequence, 10))
    gap = rows("w1", epoch, 3, (sequence.id, 1, 12, prefix_hash(PROMPT, [10])))
    fold.feed(first)
    assert not fold.feed(gap).counted and fold.counts["frame_gap"] == 1
    assert not fold.feed(first).counted and fold.counts["frame_repeated"] == 1
    assert fold.feed(rows("w1", epoch, 2)).counted, "a frame is progress even without rows"
    assert fold.feed(gap).counted and list(sequence.tokens) == [10, 12]
    assert fold.folded_step("w1") == 3


def test_rule_06_the_smallest_position_wins(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    (sequence,) = fold.accept(request())
    for step, token in enumerate((10, 11, 12), 1):
        fold.feed(rows("w1", epoch, step, fold.row(sequence, token)))
    fold.feed(End(request_id="a" * 32, reason="cancel"))
    assert (sequence.end, sequence.reason) == (3, "cancel"), "a cancel's position is the count folded there"
    fold.feed(End(request_id="a" * 32, choice=0, reason="stop_string", position=2))
    assert (sequence.end, sequence.reason, list(sequence.tokens)) == (2, "stop_string", [10, 11])
    fold.feed(End(request_id="a" * 32, reason="deadline"))
    assert (sequence.end, sequence.reason) == (2, "stop_string")


def test_rule_06_at_equal_positions_a_stop_string_wins_then_eos_then_log_order(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    (sequence,) = fold.accept(request())
    fold.feed(rows("w1", epoch, 1, fold.row(sequence, EOS)))
    assert (sequence.end, sequence.reason) == (1, "eos")
    fold.feed(End(request_id="a" * 32, reason="cancel"))
    assert sequence.reason == "eos"
    fold.feed(End(request_id="a" * 32, reason="stop_string", position=1))
    assert sequence.reason == "stop_string"


def test_rule_06_rows_beyond_the_end_are_overrun(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    (sequence,) = fold.accept(request(max_tokens=1))
    fold.feed(rows("w1", epoch, 1, fold.row(sequence, 10)))
    assert (sequence.end, sequence.reason) == (1, "length")
    overrun = fold.feed(rows("w1", epoch, 2, (sequence.id, 1, 11, prefix_hash(PROMPT, [10]))))
    assert overrun.counted and not overrun.sequences and list(sequence.tokens) == [10]
    assert fold.counts["row_overrun"] == 1


@pytest.mark.parametrize("min_tokens, expected", [(0, (1, "eos")), (1, (None, None))])
def test_eos_counts_from_min_tokens_on(fold: FoldUnderTest, min_tokens: int, expected: tuple[object, object]) -> None:
    epoch = takeover(fold)
    (sequence,) = fold.accept(request(min_tokens=min_tokens))
    fold.feed(rows("w1", epoch, 1, fold.row(sequence, EOS)))
    assert (sequence.end, sequence.reason) == expected


def test_rule_07_the_first_done_is_the_only_outcome(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    (sequence,) = fold.accept(request(max_tokens=2))
    for step, token in enumerate((10, 11), 1):
        fold.feed(rows("w1", epoch, step, fold.row(sequence, token)))
    done = Done(request_id="a" * 32, positions=(2,), reasons=("length",))
    assert fold.feed(done).counted
    assert not fold.feed(done).counted and fold.counts["done_repeated"] == 1
    fold.feed(Done(request_id="a" * 32, positions=(1,), reasons=("cancel",)))
    assert fold.counts["done_conflict"] == 1 and fold.requests["a" * 32].done == done
    fold.feed(End(request_id="a" * 32, reason="stop_string", position=1))
    assert sequence.end == 2, "nothing ends again after the outcome"


def test_rule_12_a_repeated_request_id_is_dropped_also_after_it_was_forgotten(fold: FoldUnderTest) -> None:
    takeover(fold)
    assert fold.feed(request(max_tokens=1)).counted
    assert not fold.feed(request(max_tokens=1)).counted
    fold.feed(End(request_id="a" * 32, reason="cancel"))
    fold.feed(Done(request_id="a" * 32, positions=(0,), reasons=("cancel",)))
    fold.now_ns += KEEP_FINISHED_NS + 1
    fold.feed(Fence(kind="keep", leader="s1"))
    assert not fold.requests and not fold.sequences
    assert not fold.feed(request(max_tokens=1)).counted and fold.counts["request_repeated"] == 2
    fold.now_ns += KEEP_TOMBSTONE_NS + 1
    fold.feed(Fence(kind="keep", leader="s1"))
    assert not fold.tombstones and not fold.retired


def test_rule_12_a_cancel_before_its_request_leaves_a_tombstone(fold: FoldUnderTest) -> None:
    fold.feed(End(request_id="a" * 32, reason="cancel"))
    (sequence,) = fold.accept(request())
    assert (sequence.end, sequence.reason) == (0, "cancel")


def test_rule_16_each_choice_ends_by_itself(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    first, second = fold.accept(request(n=2))
    assert first.id != second.id
    fold.feed(rows("w1", epoch, 1, fold.row(first, EOS), fold.row(second, 9)))
    assert first.end == 1 and second.end is None and not fold.requests["a" * 32].ended
    fold.feed(End(request_id="a" * 32, choice=1, reason="stop_string", position=1))
    assert fold.requests["a" * 32].ended


def test_rule_16_the_logged_logprobs_stand(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    (sequence,) = fold.accept(request(logprobs=1))
    logprob = RowLogprobs(-0.5, 1, (10,), (-0.5,))
    fold.feed(rows("w1", epoch, 1, fold.row(sequence, 10), logprobs=[logprob]))
    assert sequence.logprobs == [logprob]


def test_rule_20_an_error_row_fails_its_own_sequence_alone(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    (bad,) = fold.accept(request("a" * 32))
    (good,) = fold.accept(request("b" * 32))
    frame = rows("w1", epoch, 1, fold.row(good, 9))
    fold.feed(
        Rows(
            worker="w1",
            epoch=epoch,
            step=1,
            sequences=frame.sequences,
            positions=frame.positions,
            tokens=frame.tokens,
            prefix_hashes=frame.prefix_hashes,
            errors=[RowError(bad.id, "NaN logits")],
        )
    )
    assert (bad.end, bad.reason, bad.message) == (0, "error", "NaN logits")
    assert good.end is None and list(good.tokens) == [9]


def test_rule_21_a_row_on_a_wrong_prefix_is_seen(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    (sequence,) = fold.accept(request())
    fold.feed(rows("w1", epoch, 1, (sequence.id, 0, 10, prefix_hash([5, 6], []))))
    assert fold.counts["prefix_mismatched"] == 1
    fold.feed(rows("w1", epoch, 2, (sequence.id, 1, 11, prefix_hash(PROMPT, [10]))))
    assert fold.counts["prefix_mismatched"] == 1, "the fold's own hash follows the logged tokens"


def test_rule_21_a_row_of_an_unknown_sequence_is_foreign(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    fold.feed(rows("w1", epoch, 1, (99 << 8, 0, 10, 0)))
    assert fold.counts["row_foreign"] == 1


@pytest.mark.parametrize("kind", ["req", "out", "fence", "end", "unknown"])
@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01", b"{}", b"\xdd\xff\xff\xff\xff", b"\x91" * 100_000])
def test_malformed_records_are_counted_and_change_nothing(fold: FoldUnderTest, kind: str, data: bytes) -> None:
    change = fold.feed_bytes(kind, data)
    assert change.record is None and fold.counts["malformed"] == 1 and fold.seq == 1


def test_columns_of_different_length_are_malformed(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    frame = Rows(worker="w1", epoch=epoch, step=1, sequences=b"\0" * 8)
    assert not fold.feed(frame).counted and fold.counts["malformed"] == 1
    assert not fold.feed_bytes("out", encode(Rows(worker="w", epoch=epoch, step=1, tokens=b"123"))).counted


def test_a_record_must_follow_the_last_one(fold: FoldUnderTest) -> None:
    with pytest.raises(LogGapError):
        fold.apply("fence", b"", 2, 0)


# ---- readers of requests that are kept ------------------------------------------------------------------------------


def test_a_kept_request_is_unread_from_the_moment_its_last_reader_goes(fold: FoldUnderTest) -> None:
    takeover(fold)
    kept = msgspec.structs.replace(request(), owner="gateway-1", keep_s=60.0)
    fold.accept(kept)
    state = fold.requests[kept.request_id]
    assert state.readers == {"gateway-1"} and state.unread_ns is None
    fold.feed(Reader(request_id=kept.request_id, gateway="gateway-2", reads=True))
    fold.feed(Reader(request_id=kept.request_id, gateway="gateway-1", reads=False))
    assert state.readers == {"gateway-2"} and state.unread_ns is None
    fold.feed(Reader(request_id=kept.request_id, gateway="gateway-2", reads=False))
    assert state.unread_ns == fold.clock_ns
    went = fold.clock_ns
    fold.feed(Reader(request_id=kept.request_id, gateway="gateway-2", reads=False))
    assert state.unread_ns == went, "whoever reads no more changes nothing"
    fold.feed(Reader(request_id=kept.request_id, gateway="gateway-3", reads=True))
    assert state.readers == {"gateway-3"} and state.unread_ns is None


def test_readers_of_a_request_that_is_not_kept_change_nothing(fold: FoldUnderTest) -> None:
    takeover(fold)
    fold.accept(request())
    assert not fold.feed(Reader(request_id="a" * 32, gateway="gateway-1", reads=True)).counted
    assert not fold.feed(Reader(request_id="b" * 32, gateway="gateway-1", reads=True)).counted
    assert fold.requests["a" * 32].readers == set()


def test_a_kept_request_is_forgotten_later_than_others_and_a_snapshot_keeps_its_readers(fold: FoldUnderTest) -> None:
    epoch = takeover(fold)
    kept = msgspec.structs.replace(request("b" * 32, max_tokens=1), owner="gateway-1", keep_s=60.0)
    for accepted in (request("a" * 32, max_tokens=1), kept):
        (sequence,) = fold.accept(accepted)
        fold.feed(Done(request_id=accepted.request_id, positions=(0,), reasons=("cancel",)))
        assert sequence.end == 0
    fold.feed(Reader(request_id=kept.request_id, gateway="gateway-1", reads=False))
    fold.now_ns += KEEP_FINISHED_NS + SECOND_NS
    fold.feed(Fence(kind="keep", leader="s1"))
    assert set(fold.requests) == {kept.request_id}
    copy = FoldUnderTest()
    snapshot.restore(copy, snapshot.encode(snapshot.capture(fold)))
    state = copy.requests[kept.request_id]
    assert state.readers == set() and state.unread_ns == fold.requests[kept.request_id].unread_ns
    copy.now_ns = fold.now_ns + KEEP_RESUMABLE_NS
    copy.feed(Fence(kind="keep", leader="s1"))
    assert not copy.requests and copy.epoch_of("w") == epoch
