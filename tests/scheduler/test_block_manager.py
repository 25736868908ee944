"""Paging, prefix cache and the free list, each rule by example."""

import pytest

from services.scheduler.core.block_manager import BlockManager
from services.scheduler.core.blocks import Block, FreeList


def name(number: int) -> bytes:
    return number.to_bytes(16, "big")


def names(*numbers: int) -> list[bytes]:
    return [name(number) for number in numbers]


def held_and_named(manager: BlockManager, contents: list[bytes]) -> list[int]:
    table = manager.allocate([], len(contents))
    assert table is not None
    for block_id, content in zip(table, contents, strict=True):
        manager.register(block_id, content)
    return table


def test_allocation_is_all_or_nothing() -> None:
    manager = BlockManager(4)
    first = manager.allocate([], 3)
    assert first is not None and len(set(first)) == 3
    assert manager.allocate([], 2) is None
    assert not manager.extend(first, 2)
    assert manager.num_free_blocks == 1
    assert manager.extend(first, 1)
    assert manager.num_free_blocks == 0
    assert manager.check_integrity([first]) == []


def test_watermark_leaves_blocks_to_running_sequences() -> None:
    manager = BlockManager(4)
    assert not manager.can_allocate([], 3, num_spare=2)
    assert manager.allocate([], 3, num_spare=2) is None
    assert manager.allocate([], 2, num_spare=2) is not None


def test_hits_are_the_longest_known_prefix() -> None:
    manager = BlockManager(8)
    table = held_and_named(manager, names(1, 2, 3))
    assert manager.find_hits(names(1, 2, 3, 4), 10) == table
    assert manager.find_hits(names(1, 9, 3), 10) == table[:1]
    assert manager.find_hits(names(1, 2, 3), 2) == table[:2]
    assert manager.find_hits(names(9, 1, 2), 10) == []


def test_forgotten_contents_are_found_by_nobody_and_their_holders_go_on() -> None:
    manager = BlockManager(8)
    first = held_and_named(manager, names(1, 2, 3))
    second = manager.allocate(manager.find_hits(names(1, 2), 2), 3)
    assert second is not None
    manager.forget(second)
    assert manager.find_hits(names(1, 2, 3), 3) == []
    assert manager.num_cached_contents == 1
    manager.free(second)
    assert manager.check_integrity([first]) == []
    manager.free(first)
    assert manager.num_free_blocks == 8
    assert manager.check_integrity([]) == []
    assert held_and_named(manager, names(1)) and len(manager.find_hits(names(1), 1)) == 1


def test_shared_blocks_stay_held_until_the_last_one_leaves() -> None:
    manager = BlockManager(4)
    first = held_and_named(manager, names(1, 2))
    second = manager.allocate(manager.find_hits(names(1, 2), 2), 3)
    assert second is not None and second[:2] == first
    assert manager.num_held_blocks == 3
    manager.free(first)
    assert manager.num_held_blocks == 3
    manager.free(second)
    assert manager.num_held_blocks == 0
    assert manager.find_hits(names(1, 2), 2) == first, "freed contents can be hit until they are overwritten"


def test_hits_that_are_free_do_not_count_as_room() -> None:
    manager = BlockManager(3)
    table = held_and_named(manager, names(1, 2))
    manager.free(table)
    hits = manager.find_hits(names(1, 2), 2)
    assert manager.allocate(hits, 4) is None, "two hits and one free block are not two new ones"
    assert manager.check_integrity([]) == []
    assert manager.allocate(hits, 3) is not None


def test_blocks_without_contents_go_first_then_the_least_recently_used() -> None:
    manager = BlockManager(5)
    old = held_and_named(manager, names(1, 2))
    recent = held_and_named(manager, names(3, 4))
    manager.free(old)
    manager.free(recent)
    taken = manager.allocate([], 1)
    assert taken is not None and taken[0] not in old + recent
    assert manager.extend(taken, 1)
    assert taken[1] == old[1], "the end of the older prefix is overwritten first"
    assert manager.find_hits(names(1, 2), 2) == old[:1]
    assert manager.extend(taken, 1)
    assert manager.find_hits(names(1), 1) == []
    assert manager.find_hits(names(3, 4), 2) == recent


def test_a_hit_makes_contents_recent() -> None:
    manager = BlockManager(2)
    a, b = held_and_named(manager, names(1)), held_and_named(manager, names(2))
    manager.free(a)
    manager.free(b)
    again = manager.allocate(manager.find_hits(names(1), 1), 1)
    assert again == a
    manager.free(a)
    assert manager.allocate([], 1) == b


def test_the_same_contents_twice_keep_their_first_block() -> None:
    manager = BlockManager(4)
    first = held_and_named(manager, names(1))
    second = held_and_named(manager, names(1))
    assert manager.find_hits(names(1), 1) == first
    manager.free(first)
    manager.free(second)
    assert manager.num_cached_contents == 1
    assert manager.check_integrity([]) == []


def test_prefix_caching_off_remembers_nothing() -> None:
    manager = BlockManager(4, enable_prefix_caching=False)
    table = held_and_named(manager, names(1))
    assert manager.find_hits(names(1), 1) == []
    assert manager.load([(2, name(2))]) == 0
    manager.free(table)
    assert manager.check_integrity([]) == []


def test_rule_10_reported_contents_are_loaded_as_cache() -> None:
    manager = BlockManager(4)
    report = [(2, name(1)), (0, name(2)), (0, name(3)), (3, name(1)), (4, name(5)), (-1, name(6))]
    assert manager.load(report) == 2, "strange ids and repeated entries are passed over"
    assert manager.num_held_blocks == 0
    assert manager.find_hits(names(1, 2), 2) == [2, 0]
    table = manager.allocate([], 2)
    assert table is not None and set(table) == {1, 3}, "what is loaded is overwritten last"
    assert manager.check_integrity([table]) == []


def test_integrity_names_what_is_wrong() -> None:
    manager = BlockManager(3)
    table = manager.allocate([], 2)
    assert table is not None
    assert any("ref_count" in problem for problem in manager.check_integrity([]))
    assert any("twice" in problem for problem in manager.check_integrity([table, [2, 2]]))


def test_free_list_keeps_order_and_refuses_misuse() -> None:
    blocks = [Block(number) for number in range(4)]
    free = FreeList()
    free.push_newest(blocks[0])
    free.push_newest(blocks[1])
    free.push_oldest(blocks[2])
    assert [block.id for block in free] == [2, 0, 1]
    free.remove(blocks[0])
    assert [block.id for block in free] == [2, 1] and len(free) == 2
    with pytest.raises(ValueError, match="not free"):
        free.remove(blocks[0])
    with pytest.raises(ValueError, match="free already"):
        free.push_newest(blocks[1])
    assert [free.pop_oldest().id, free.pop_oldest().id] == [2, 1]
    with pytest.raises(IndexError):
        free.pop_oldest()
