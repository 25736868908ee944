"""Silent gateways, against a model that scans everything."""

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core.readership import GATEWAY_SILENCE_S, RETURN_S, Readership

GATEWAYS = st.sampled_from(["g1", "g2", "g3"])
REQUESTS = st.sampled_from([f"r{number}" for number in range(5)])
CALLS = st.one_of(
    st.tuples(st.sampled_from(["add", "remove"]), GATEWAYS, REQUESTS),
    st.tuples(st.sampled_from(["heartbeat", "pause", "deaf", "silent"]), GATEWAYS, st.just("")),
)


@given(st.lists(st.tuples(CALLS, st.sampled_from([0.0, 0.25, 0.5, 1.0])), max_size=100))
def test_a_gateway_loses_what_it_reads_once_it_was_silent_for_the_time_and_not_before(
    calls: list[tuple[tuple[str, str, str], float]],
) -> None:
    """given_up: until the gateway is heard of again, or reads them no more."""
    readership = Readership()
    reads: set[tuple[str, str]] = set()
    given_up: set[tuple[str, str]] = set()
    silent_at: dict[str, float] = {}
    now = 100.0
    for (call, gateway, request_id), elapsed_s in calls:
        now += elapsed_s
        is_given_up = any(name == gateway for name, _ in given_up)
        if call == "add":
            readership.add(request_id, gateway, now)
            reads.add((gateway, request_id))
            if is_given_up or gateway not in silent_at:
                silent_at[gateway] = now + GATEWAY_SILENCE_S
        elif call == "remove":
            readership.remove(request_id, gateway)
            was_given_up = (gateway, request_id) in given_up
            reads.discard((gateway, request_id))
            given_up.discard((gateway, request_id))
            if was_given_up and not any(name == gateway for name, _ in reads):
                del silent_at[gateway]
        elif call == "heartbeat":
            readership.on_heartbeat(gateway, now)
            silent_at[gateway] = now + GATEWAY_SILENCE_S
            given_up = {(name, each) for name, each in given_up if name != gateway}
        elif call in ("pause", "deaf"):
            readership.reset(now, was_deaf=call == "deaf")
            again = now + (RETURN_S if call == "deaf" else GATEWAY_SILENCE_S)
            silent_at = {name: max(at, again) for name, at in silent_at.items()}
            given_up.clear()
        else:
            silent = {name for name, at in silent_at.items() if now > at}
            lost = {(name, each) for name, each in reads if name in silent} - given_up
            assert {(name, each) for name, ids in readership.take_silent(now) for each in ids} == lost
            given_up |= lost
            needed = {name for name, _ in reads}
            silent_at = {name: at for name, at in silent_at.items() if name not in silent or name in needed}
        assert readership.num_gateways == len(silent_at)
        for name in ("g1", "g2", "g3"):
            for each in (f"r{number}" for number in range(5)):
                assert readership.is_given_up(name, each) == ((name, each) in given_up)


def test_gateways_that_come_and_go_are_forgotten() -> None:
    readership = Readership()
    for number in range(1000):
        readership.on_heartbeat(f"g{number}", float(number))
        assert readership.take_silent(float(number)) == []
    assert readership.num_gateways <= 2
