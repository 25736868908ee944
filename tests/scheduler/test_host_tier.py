"""The swap space as the scheduler sees it, against a worker that does what it is told."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.host_tier import HostTier

NUM_BLOCKS = 6

NAMES = st.integers(0, 9)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("keep"), st.lists(NAMES, max_size=4, unique=True)),
        st.tuples(st.just("fetch"), st.lists(NAMES, min_size=1, max_size=3, unique=True)),
        st.tuples(st.just("forget"), st.lists(NAMES, max_size=3)),
        st.tuples(st.just("plan"), st.just([])),
    ),
    max_size=60,
)


def name(number: int) -> bytes:
    return bytes([number])


class Device:
    """blocks: what lies in them when all plans so far are executed; expected: what shall, once the next one is."""

    def __init__(self, num_slots: int) -> None:
        self.blocks = [-1] * NUM_BLOCKS
        self.slots = [-1] * num_slots
        self.expected: dict[int, int] = {}

    def execute(self, out: bytes, back: bytes) -> None:
        leaving, coming = array("i", out), array("i", back)
        assert len(set(leaving[1::2])) == len(leaving) // 2, "a slot is written once"
        assert len(set(coming[1::2])) == len(coming) // 2, "a block is written once"
        for block, slot in zip(leaving[::2], leaving[1::2], strict=True):
            self.slots[slot] = self.blocks[block]
        for slot, block in zip(coming[::2], coming[1::2], strict=True):
            self.blocks[block] = self.slots[slot]


@given(EVENTS, st.integers(0, 5))
def test_what_comes_in_is_what_went_out(events: list[tuple[str, list[int]]], num_slots: int) -> None:
    tier, device = HostTier(num_slots), Device(num_slots)
    for kind, numbers in events:
        if kind == "keep":
            # a sequence's blocks, computed by plans that went before, of which none is being fetched
            blocks = [block for block in range(NUM_BLOCKS) if block not in device.expected][: len(numbers)]
            for block, number in zip(blocks, numbers, strict=False):
                device.blocks[block] = number
            tier.keep(blocks, [name(number) for number in numbers])
            device.execute(*tier.take_transfers())
            assert all(device.blocks[block] == number for block, number in device.expected.items())
            device.expected.clear()
        elif kind == "fetch":
            num_hits = tier.find_hits([name(number) for number in numbers], 0, len(numbers))
            blocks = list(range(num_hits))
            tier.fetch([name(number) for number in numbers[:num_hits]], blocks)
            device.expected |= dict(zip(blocks, numbers, strict=False))
        elif kind == "forget":
            tier.forget([name(number) for number in numbers])
        else:
            device.execute(*tier.take_transfers())
            assert all(device.blocks[block] == number for block, number in device.expected.items())
            device.expected.clear()
        assert tier.check_integrity() == []


def test_the_oldest_contents_make_room_but_none_that_is_about_to_come_in() -> None:
    tier = HostTier(2)
    assert tier.keep([0, 1], [b"a", b"b"]) == 2
    tier.fetch([b"a"], [5])
    assert tier.keep([2], [b"c"]) == 1
    assert b"a" in tier and b"c" in tier and b"b" not in tier
    tier.fetch([b"c"], [4])
    assert tier.keep([3], [b"d"]) == 0, "both are about to come in"
    out, back = tier.take_transfers()
    assert array("i", out).tolist() == [0, 1, 2, 0] or array("i", out).tolist() == [0, 0, 2, 1]
    assert len(array("i", back)) == 4
    assert tier.keep([3], [b"d"]) == 1


def test_a_worker_without_a_swap_space_keeps_nothing() -> None:
    tier = HostTier(0)
    assert tier.keep([0], [b"a"]) == 0
    assert tier.find_hits([b"a"], 0, 1) == 0
    assert tier.take_transfers() == (b"", b"")
