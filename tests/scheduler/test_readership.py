"""Silent gateways, against a model that scans everything."""

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.readership import ASK_EVERY_S, GATEWAY_SILENCE_S, HANG_S, RETURN_S, Readership

GATEWAYS = ("g1", "g2", "g3")
REQUESTS = tuple(f"r{number}" for number in range(5))
CALLS = st.one_of(
    st.tuples(st.sampled_from(["add", "remove"]), st.sampled_from(GATEWAYS), st.sampled_from(REQUESTS)),
    st.tuples(
        st.sampled_from(["heartbeat", "pause", "deaf", "tick", "tick", "leave bus", "join bus"]),
        st.sampled_from(GATEWAYS),
        st.just(""),
    ),
)


class Model:
    """What a readership should know, found by looking at everything each time. on_bus: whom the bus knows, which
    answers at once. asked: when for whom, since it was heard of. given_up: until then, or until it reads them no
    more."""

    def __init__(self) -> None:
        self.reads: set[tuple[str, str]] = set()
        self.given_up: set[tuple[str, str]] = set()
        self.silent_at: dict[str, float] = {}
        self.asked: dict[str, float] = {}
        self.absent: set[str] = set()
        self.on_bus = set(GATEWAYS)

    def lives(self, gateway: str, silent_at: float) -> None:
        self.silent_at[gateway] = silent_at
        self.asked.pop(gateway, None)
        self.absent.discard(gateway)

    def add(self, gateway: str, request_id: str, now: float) -> None:
        if gateway not in self.silent_at or any(name == gateway for name, _ in self.given_up):
            self.lives(gateway, now + GATEWAY_SILENCE_S)
        self.reads.add((gateway, request_id))

    def remove(self, gateway: str, request_id: str) -> None:
        was_given_up = (gateway, request_id) in self.given_up
        self.reads.discard((gateway, request_id))
        self.given_up.discard((gateway, request_id))
        if was_given_up and gateway not in self.needed:
            self.forget(gateway)

    def forget(self, gateway: str) -> None:
        self.lives(gateway, 0.0)
        del self.silent_at[gateway]

    @property
    def needed(self) -> set[str]:
        return {name for name, _ in self.reads}

    def heartbeat(self, gateway: str, now: float) -> None:
        self.lives(gateway, now + GATEWAY_SILENCE_S)
        self.given_up = {(name, each) for name, each in self.given_up if name != gateway}

    def reset(self, now: float, was_deaf: bool) -> None:
        again = now + (RETURN_S if was_deaf else GATEWAY_SILENCE_S)
        for name, at in list(self.silent_at.items()):
            self.lives(name, max(at, again))
        self.given_up.clear()

    def questions(self, now: float) -> set[str]:
        due = {
            name
            for name in self.needed - self.absent
            if now > self.silent_at[name] and now >= self.asked.get(name, float("-inf")) + ASK_EVERY_S
        }
        self.asked |= dict.fromkeys(due, now)
        return due

    def lost(self, now: float) -> set[tuple[str, str]]:
        gone = {name for name, at in self.silent_at.items() if now > at + (0.0 if name in self.absent else HANG_S)}
        lost = {(name, each) for name, each in self.reads if name in gone} - self.given_up
        self.given_up |= lost
        for name in [name for name, at in self.silent_at.items() if now > at and name not in self.needed]:
            self.forget(name)
        return lost


@given(st.lists(st.tuples(CALLS, st.sampled_from([0.0, 0.25, 0.5, 1.0, 4.0])), max_size=100))
def test_a_gateway_loses_what_it_reads_once_it_is_gone_and_not_before(
    calls: list[tuple[tuple[str, str, str], float]],
) -> None:
    readership, model, now = Readership(), Model(), 100.0
    for (call, gateway, request_id), elapsed_s in calls:
        now += elapsed_s
        if call == "add":
            readership.add(request_id, gateway, now)
            model.add(gateway, request_id, now)
        elif call == "remove":
            readership.remove(request_id, gateway)
            model.remove(gateway, request_id)
        elif call == "heartbeat":
            readership.on_heartbeat(gateway, now)
            model.heartbeat(gateway, now)
        elif call in ("pause", "deaf"):
            readership.reset(now, was_deaf=call == "deaf")
            model.reset(now, was_deaf=call == "deaf")
        elif call == "leave bus":
            model.on_bus.discard(gateway)
        elif call == "join bus":
            model.on_bus.add(gateway)
        else:
            questions = readership.take_questions(now)
            assert set(questions) == model.questions(now)
            for name in set(questions) - model.on_bus:
                readership.on_absent(name)
                model.absent.add(name)
            assert {(name, each) for name, ids in readership.take_silent(now) for each in ids} == model.lost(now)
        assert readership.num_gateways == len(model.silent_at)
        given_up = {(name, each) for name in GATEWAYS for each in REQUESTS if readership.is_given_up(name, each)}
        assert given_up == model.given_up


def test_gateways_that_come_and_go_are_forgotten() -> None:
    readership = Readership()
    for number in range(1000):
        readership.on_heartbeat(f"g{number}", float(number))
        assert readership.take_silent(float(number)) == []
    assert readership.num_gateways <= 2
