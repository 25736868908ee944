"""A whole shard on a virtual clock: real cores, a network that loses, and faults drawn from the seed."""

import logging
from collections import Counter
from collections.abc import Callable

import msgspec
import structlog

from shared import subjects
from shared.log.verify import ArchiveFold
from shared.messages.codec import encode
from shared.messages.pipeline import Fence
from tests.shard.clockwork import START_NS, Process, World
from tests.shard.folder import Folder
from tests.shard.scenario import Scenario, draw_request, draw_scenario
from tests.shard.sim_detokenizer import SimDetokenizer
from tests.shard.sim_gateway import Client, SimGateway
from tests.shard.sim_log import SimLog
from tests.shard.sim_scheduler import SimScheduler
from tests.shard.sim_worker import SimWorker

RESTART_S = 0.5
LEAVE_S = 2.0
LOOK_S = 0.5
QUIET_FROM_S = 11.0
SETTLE_S = 10.0  # I4; a reader whose request never came is told so after 5 s and a dead tail's silence
NUM_OF_EACH = 2
USUAL_BLOCKS = 24
OTHER_BLOCKS = (12, 24, 40)


class Shard:
    """Two processes of each kind, and clients that ask at random moments. finished: every request has its outcome and
    every client that stayed has read it."""

    def __init__(self, seed: int, scenario: Scenario | None = None, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.scenario = scenario or draw_scenario(seed)
        self.world = World(seed, loss=self.scenario.loss, duplication=self.scenario.duplication, trace=trace)
        self.log = SimLog(self.world.unix_ns, self.scenario.max_records, self._on_stored)
        self.logger = _logger(self.world)
        self.schedulers: list[SimScheduler] = []
        self.workers: list[SimWorker] = []
        self.detokenizers: list[SimDetokenizer] = []
        self.gateways: list[SimGateway] = []
        self.clients: list[Client] = []
        self.deserters: list[Client] = []
        self.faults: Counter[str] = Counter()
        self.num_poisoned = 0
        self.num_swaps = 0
        self.num_ahead = 0
        self.num_row_errors = 0
        self.num_returns = 0
        self.num_wrong_contexts = 0
        self.gateway_deaths: dict[str, float] = {}
        self.takeovers: list[float] = []
        self.ended_at: dict[str, float] = {}
        self.ledger = ArchiveFold()
        self._folders: list[Folder] = []
        self._counter: Counter[str] = Counter()
        for kind in ("scheduler", "worker", "detokenizer", "gateway") * NUM_OF_EACH:
            self.start(kind)
        draw = self.world.random
        for number in range(self.scenario.num_requests):
            self.world.after(draw.uniform(0, self.scenario.asked_within_s), self._ask, number)
        for _ in range(self.scenario.num_faults):
            self.world.after(draw.uniform(1, QUIET_FROM_S - 1), self._hurt_somebody)

    # ---- who is there -----------------------------------------------------------------------------------------------

    def start(self, kind: str, num_blocks: int = USUAL_BLOCKS) -> None:
        """Start a process of a kind under a new name."""
        self._counter[kind] += 1
        name = f"{kind}-{self._counter[kind]}"
        if kind == "scheduler":
            self.schedulers.append(SimScheduler(self, name))
        elif kind == "worker":
            self.workers.append(SimWorker(self, name, num_blocks))
        elif kind == "detokenizer":
            self.detokenizers.append(SimDetokenizer(self, name))
        else:
            self.gateways.append(SimGateway(self, name))
        self._folders = [*self.schedulers, *self.detokenizers]

    def members(self, kind: str) -> list[Process]:
        """The processes of a kind, dead ones that nobody has missed yet among them."""
        groups: dict[str, list[Process]] = {
            "scheduler": self.schedulers,  # type: ignore[dict-item]
            "worker": self.workers,  # type: ignore[dict-item]
            "detokenizer": self.detokenizers,  # type: ignore[dict-item]
            "gateway": self.gateways,  # type: ignore[dict-item]
        }
        return groups[kind]

    def revive(self) -> None:
        """What a supervisor does."""
        for kind in ("scheduler", "worker", "detokenizer", "gateway"):
            group = self.members(kind)
            for process in [process for process in group if not process.alive]:
                group.remove(process)
                if not (isinstance(process, SimWorker) and process.leaving) or len(group) < NUM_OF_EACH:
                    self.start(kind)

    def worker_on(self, subject: str) -> SimWorker | None:
        """The worker that listens on a plan subject."""
        return next((worker for worker in self.workers if subjects.plan(worker.name) == subject), None)

    def gateway_at(self, inbox: str) -> SimGateway | None:
        """The gateway that listens on an inbox."""
        return next((gateway for gateway in self.gateways if gateway.inbox == inbox), None)

    @property
    def leaders(self) -> list[SimScheduler]:
        """Those who believe that they lead."""
        return [scheduler for scheduler in self.schedulers if scheduler.alive and scheduler.leader is not None]

    def _on_stored(self) -> None:
        if self.world.trace is not None:
            kind, data, _ = self.log.archive[-1]
            self.world.note("log", len(self.log.archive), kind, f"<{len(data)} bytes>")
        for folder in self._folders:
            folder.tell()

    # ---- clients ----------------------------------------------------------------------------------------------------

    def _ask(self, number: int) -> None:
        draw = self.world.random
        request = draw_request(number, self.scenario, draw, self.world.unix_ns())
        gateway = self._any_gateway()
        has_owner = request.keep_s > 0 or draw.random() < 0.7
        client = Client(msgspec.structs.replace(request, owner=gateway.name if has_owner else ""))
        self.clients.append(client)
        gateway.connect(client)
        if draw.random() < self.scenario.repeats:
            self.world.after(
                draw.uniform(0.01, 6), self.log.store_once, "req", encode(client.request), f"again-{number}"
            )
        if draw.random() < self.scenario.leaving:
            self.world.after(draw.uniform(0, 3), self._leave, client)

    def _any_gateway(self) -> SimGateway:
        """One that lives; a load balancer may well choose one that is paused."""
        living = [gateway for gateway in self.gateways if gateway.alive]
        if not living:
            self.revive()
            living = self.gateways
        return self.world.random.choice(living)

    def _leave(self, client: Client) -> None:
        if client.gateway is None or client.has_all or client in self.deserters:
            return
        client.gateway.deliver(self._left, client)

    def _left(self, client: Client) -> None:
        if client.gateway is None or client.has_all or client.request_id not in client.gateway.connections:
            return
        self.world.note("client of", client.request_id, "leaves")
        client.gateway.disconnect(client)
        self._lost(client)

    def _lost(self, client: Client) -> None:
        """A client without a connection comes back, if its request waits for it, or stays away for good."""
        draw = self.world.random
        client.gateway = None
        returns = (client.is_kept or not client.request.owner) and draw.random() < 0.8
        if returns:
            self.world.after(draw.uniform(0.05, 4), self._return, client)
        else:
            self.deserters.append(client)

    def _return(self, client: Client) -> None:
        if not client.has_all:
            self.num_returns += 1
            self.world.note("client of", client.request_id, "returns")
            self._any_gateway().connect(client)

    # ---- faults -----------------------------------------------------------------------------------------------------

    def _hurt_somebody(self) -> None:
        self.hurt(self.world.random.choice(self.scenario.faults))

    def hurt(self, fault: str) -> None:
        """One fault, of one random process where it is one of a process."""
        draw, world = self.world.random, self.world
        verb, _, kind = fault.partition("-")
        self.revive()
        self.faults[fault] += 1
        world.note("fault", fault)
        if kind == "server":
            self._hurt_server(verb)
        elif kind == "edge":
            one, other = draw.sample(world.processes, 2)
            world.note("cut between", one.name, other.name)
            world.cut(one, other, draw.uniform(0.5, 3))
        elif verb == "join":
            self.start(kind, draw.choice(OTHER_BLOCKS))
        elif self.members(kind):
            self._hurt_process(verb, draw.choice(self.members(kind)))

    def _hurt_server(self, verb: str) -> None:
        if verb == "stall":
            self.world.stall(self.world.random.uniform(0.3, 3))
        else:
            self.world.restart_server(self.world.random.uniform(0.1, 1))
            self.log.forget_message_ids()

    def _hurt_process(self, verb: str, victim: Process) -> None:
        draw = self.world.random
        if verb == "kill":
            self.kill(victim)
        elif verb == "leave":
            assert isinstance(victim, SimWorker)
            victim.leaving = True
            self.world.after(LEAVE_S, victim.kill)
        elif verb == "lag":
            assert isinstance(victim, Folder)
            victim.lag(draw.uniform(0.05, 0.7), draw.uniform(1, 4))
        elif verb == "cut":
            victim.cut_off(draw.uniform(0.3, 3), keeps_unsent=draw.random() < 0.5)
        else:
            victim.pause(draw.uniform(0.95, 1.45) if verb == "blink" else draw.uniform(2, 4))

    def kill(self, victim: Process) -> None:
        """kill -9, and a new process of the kind a moment later."""
        victim.kill()
        self.world.after(RESTART_S, self.revive)
        if isinstance(victim, SimGateway):
            self.gateway_deaths[victim.name] = self.world.now
            for connection in victim.connections.values():
                self._lost(connection.client)

    # ---- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> "Shard":
        """Let it all happen, until everything has ended and had time to settle."""
        self.world.after(QUIET_FROM_S, self.revive)
        moment = 0.0
        while not self.finished and moment < self.scenario.limit_s:
            moment += LOOK_S
            self.world.run(moment)
            self.revive()
            self._keep_ledger()
        self.world.run(max(moment, QUIET_FROM_S))
        self.world.run(max(self.world.now, self.world.disturbed_until) + SETTLE_S)
        self._keep_ledger()
        return self

    def _keep_ledger(self) -> None:
        ledger = self.ledger
        for seq in range(ledger.seq + 1, len(self.log.archive) + 1):
            kind, data, clock_ns = self.log.archive[seq - 1]
            change = ledger.apply(kind, data, seq, clock_ns)
            at = (clock_ns - START_NS) / 1e9
            if isinstance(change.record, Fence) and change.record.kind == "takeover":
                self.takeovers.append(at)
            for sequence in change.sequences:
                state = ledger.requests[sequence.request.request_id]
                if state.ended:
                    self.ended_at.setdefault(state.request.request_id, at)

    @property
    def finished(self) -> bool:
        """See the class."""
        if len(self.clients) < self.scenario.num_requests:
            return False
        known = self.ledger.all_requests()
        return all(state.done is not None for state in known.values()) and all(
            client.has_all or client in self.deserters for client in self.clients
        )


def _logger(world: World) -> structlog.typing.FilteringBoundLogger:
    """The services' log goes into the trace."""

    def to_trace(logger: object, level: str, event: structlog.typing.EventDict) -> str:
        words = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
        world.note(f"{level}: {event['event']}", words)
        raise structlog.DropEvent

    level = logging.INFO if world.trace is not None else logging.CRITICAL
    wrapper = structlog.make_filtering_bound_logger(level)
    return structlog.wrap_logger(None, processors=[to_trace], wrapper_class=wrapper)  # type: ignore[no-any-return]
