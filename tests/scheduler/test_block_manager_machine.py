"""The block manager as a state machine, against a model that knows what was written into which block."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.scheduler.core.block_manager import BlockManager


def chain(*tokens: int) -> list[bytes]:
    """Names of blocks with these contents, each depending on all before it."""
    return [bytes(tokens[: index + 1]) for index in range(len(tokens))]


class BlockManagerMachine(RuleBasedStateMachine):
    """Model: written[block] is the content last written there; tables are those that the test holds."""

    @initialize(num_blocks=st.integers(1, 12), caching=st.booleans())
    def begin(self, num_blocks: int, caching: bool) -> None:
        self.manager = BlockManager(num_blocks, enable_prefix_caching=caching)
        self.written: dict[int, bytes | None] = dict.fromkeys(range(num_blocks))
        self.tables: list[list[int]] = []

    @rule(
        tokens=st.lists(st.integers(0, 2), min_size=1, max_size=5),
        num_named=st.integers(0, 5),
        num_spare=st.integers(0, 3),
    )
    def allocate(self, tokens: list[int], num_named: int, num_spare: int) -> None:
        contents = chain(*tokens)
        before = self.manager.num_free_blocks
        hits = self.manager.find_hits(contents, len(contents))
        assert [self.written[block] for block in hits] == contents[: len(hits)], "a hit holds what its name says"
        table = self.manager.allocate(hits, len(contents), num_spare)
        held = {block for other in self.tables for block in other}
        room = before - len(set(hits) - held) - (len(contents) - len(hits))
        assert (table is not None) == (room >= num_spare)
        if table is None:
            assert self.manager.num_free_blocks == before
            return
        assert not set(table[len(hits) :]) & held, "a new block belongs to nobody"
        for index in range(len(hits), len(table)):
            self.written[table[index]] = contents[index]
            if index < num_named:
                self.manager.register(table[index], contents[index])
        self.tables.append(table)

    @precondition(lambda self: self.tables)
    @rule(index=st.integers(0, 100), num_blocks=st.integers(1, 3))
    def extend(self, index: int, num_blocks: int) -> None:
        table = self.tables[index % len(self.tables)]
        length, before = len(table), self.manager.num_free_blocks
        if self.manager.extend(table, num_blocks):
            for block in table[length:]:
                self.written[block] = None
            assert len(table) == length + num_blocks
        else:
            assert before < num_blocks and len(table) == length

    @precondition(lambda self: self.tables)
    @rule(index=st.integers(0, 100))
    def free(self, index: int) -> None:
        self.manager.free(self.tables.pop(index % len(self.tables)))

    @precondition(lambda self: not self.tables)
    @rule()
    def start_anew_from_a_report(self) -> None:
        report = [(block, content) for block, content in self.written.items() if content is not None]
        manager = BlockManager(self.manager.num_blocks, enable_prefix_caching=self.manager.enable_prefix_caching)
        num_loaded = manager.load(report)
        assert num_loaded == (len({content for _, content in report}) if manager.enable_prefix_caching else 0)
        self.manager = manager

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "manager"):
            assert self.manager.check_integrity(self.tables) == []


BlockManagerMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestBlockManagerMachine = BlockManagerMachine.TestCase
