"""The simulated shard with a log that is small, trimmed all the time and sometimes full; workers of all sizes come and
go; and a reader gets the text of every request over the lossy network, exactly as it is in the log."""

import pytest

from services.detokenizer.core.text_view import text_upto
from shared.endings import FINISH_REASONS
from shared.log.port import LogFull
from shared.log.verify import ArchiveFold, Report, report_of, verify
from shared.messages.control import Attach, Detach
from tests.shard.actors import VOCABULARY, SimWorker
from tests.shard.clockwork import now_or_never
from tests.shard.reader import SimReader
from tests.shard.test_simulated_shard import FAULTS, NUM_REQUESTS, SimulatedShard

MORE_FAULTS = [*FAULTS, "join-worker", "leave-worker", "leave-worker", "stop-detokenizer", "kill-scheduler"]
RETRY_S = 0.3
LEAVE_S = 2.0


class TrimmedShard(SimulatedShard):
    """A shard with a reader, and a ledger that folds every record and forgets none."""

    def __init__(self, seed: int, max_records: int) -> None:
        super().__init__(seed, loss=0.02, max_records=max_records)
        self.num_refused = 0
        self.ledger = ArchiveFold()
        now_or_never(self.world.log.tail(self.ledger, lambda change: None, lambda: None).start())
        self.reader = self.view.reader = SimReader(self.world, self._attach, self._detach)

    def ask(self, number: int) -> None:
        """A client whose request is refused tries again later; its reader attaches at the same time."""
        random_state = self.world.random.getstate()
        try:
            super().ask(number)
        except LogFull:
            self.world.random.setstate(random_state)
            self.num_refused += 1
            self.world.after(RETRY_S, lambda: self.ask(number))
            return
        request_id = self.request_ids[-1]
        self.reader.read(request_id, len(self.ledger.requests[request_id].sequences))

    def cancel(self, request_id: str) -> None:
        """As long as the log is full it is tried again."""
        try:
            super().cancel(request_id)
        except LogFull:
            self.world.after(RETRY_S, lambda: self.cancel(request_id))

    def _attach(self, detokenizer: str, attach: Attach) -> None:
        group = [each for each in self.view.detokenizers if detokenizer in ("", each.name)]
        if group and not self.world.lost():
            chosen = self.world.random.choice(group)
            self.world.send(chosen, lambda: chosen.on_attach(attach))

    def _detach(self, detach: Detach) -> None:
        for each in self.view.detokenizers:
            self.world.send(each, lambda each=each: each.desk.detach(detach, self.world.now))  # type: ignore[misc]

    def hurt(self, fault: str) -> None:
        """Workers of another size join, or leave as after SIGTERM; all other faults as ever."""
        workers = self.view.workers
        if fault == "join-worker":
            self.faults[fault] += 1
            self._counter["worker"] += 1
            name = f"worker-{self._counter['worker']}"
            num_blocks = self.world.random.choice([12, 24, 40])
            workers.append(SimWorker(self.world, name, self.view, num_blocks=num_blocks))
        elif fault == "leave-worker" and workers:
            self.faults[fault] += 1
            leaver = self.world.random.choice(workers)
            leaver.leaving = True
            self.world.after(LEAVE_S, lambda: self._gone(leaver))
        elif fault != "leave-worker":
            super().hurt(fault)

    def _gone(self, leaver: SimWorker) -> None:
        if leaver.alive:
            leaver.kill()

    @property
    def finished(self) -> bool:
        """Whether every request has its outcome, and its reader knows."""
        states = self.ledger.all_requests().values()
        return len(states) == NUM_REQUESTS and all(state.done for state in states) and self.reader.is_done

    def check_texts(self) -> None:
        """What was read is what is in the log."""
        for request_id, state in self.ledger.all_requests().items():
            heard = self.reader.heard[request_id]
            for sequence in state.sequences:
                assert heard.token_ids[sequence.choice] == sequence.tokens
                assert heard.ends[sequence.choice] == sequence.reason
                if sequence.reason in FINISH_REASONS and sequence.reason != "cancel":
                    text = text_upto(VOCABULARY, sequence.request.sampling, sequence.tokens)
                    assert heard.texts[sequence.choice] == text

    def problems(self, report: Report) -> dict[str, int]:
        """The counts of a report that are not zero."""
        names = ("lost", "duplicated", "foreign", "prefix_mismatched", "malformed")
        return {name: getattr(report, name) for name in names if getattr(report, name)}


def run(seed: int, max_records: int) -> TrimmedShard:
    shard = TrimmedShard(seed, max_records)
    shard.run(MORE_FAULTS)
    assert shard.finished, f"unfinished after {shard.world.now:.0f} s: {dict(shard.faults)}"
    assert shard.problems(report_of(shard.ledger)) == {}
    assert shard.problems(now_or_never(verify(shard.world.log))) == {}, "from the oldest snapshot on"
    shard.check_texts()
    return shard


@pytest.mark.parametrize("seed", range(15))
def test_rule_11_a_log_trimmed_all_the_time_loses_nothing(seed: int) -> None:
    shard = run(seed, max_records=400)
    assert shard.world.log.first_seq > 1


@pytest.mark.parametrize("seed", range(100, 115))
def test_rule_11_a_log_that_is_full_again_and_again_loses_nothing(seed: int) -> None:
    shard = run(seed, max_records=60)
    assert shard.world.log.first_seq > 1


@pytest.mark.full
@pytest.mark.parametrize("max_records", [40, 100, 1000])
@pytest.mark.parametrize("seed", range(2000, 2060))
def test_rule_11_a_trimmed_log_loses_nothing_many_seeds(seed: int, max_records: int) -> None:
    run(seed, max_records)
