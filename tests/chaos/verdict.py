"""What is required, what was measured, and whether it held. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tests.chaos.options import Options
from tests.chaos.storm import MOMENTS

MAX_STALL_P99_S = {"worker": 1.5, "scheduler": 2.0, "detokenizer": 1.0, "gateway": 1.0, "nats-server": 1.5}
MIN_GOODPUT = 0.7
MAX_SLOPE_MB_PER_H = 2.0
ENOUGH_FAULTS = 300
GOOD_ENDS = ("exit status 0", "killed by signal 9", "deposed")
MANY_FAULTS = 30  # from here on every service must have been hit
MANY = 100  # cancelled requests, from here on some at every moment

LOST = ("lost", "refused", "unknown to the log", "without outcome")
WRONG_TOKENS = ("duplicated", "missing", "reordered", "foreign")
OTHER = ("text differs", "billed wrong", "reason differs", "cut short", "unknown to any client")


@dataclass(frozen=True, slots=True)
class Line:
    """One requirement. holds None: there was nothing to measure."""

    part: str
    what: str
    required: str
    measured: str
    holds: bool | None


def lines(options: Options, results: dict[str, dict[str, Any]]) -> list[Line]:
    """The verdict on all parts."""
    found: list[Line] = []
    for part, result in results.items():
        if "error" in result:
            found.append(Line(part, "ran to its end", "yes", str(result["error"])[:300], False))
            continue
        found += _truth(part, result)
        if part == "main":
            found += _main(options, result)
            found += (line if options.judges_speed else replace(line, holds=None) for line in _speed(options, result))
        if part == "losses":
            found += _losses(result)
        if part == "soak":
            found += _soak(result)
    return found


def _truth(part: str, result: dict[str, Any]) -> Iterator[Line]:
    """Invariants that hold in every part."""
    counts = result["ledger"]
    compared = f"of {counts.get('compared', 0)} requests"
    lost = {name: counts[name] for name in LOST if counts.get(name)}
    yield Line(part, "requests lost", "0", f"{sum(lost.values())} {compared} {lost or ''}".strip(), not lost)
    yield Line(part, "requests compared", "> 0", str(counts.get("compared", 0)), counts.get("compared", 0) > 0)
    tokens = f"of {counts.get('tokens compared', 0)} tokens"
    for name in WRONG_TOKENS:
        yield Line(part, f"tokens {name}", "0", f"{counts.get(name, 0)} {tokens}", not counts.get(name))
    for name in OTHER:
        yield Line(part, f"requests: {name}", "0", str(counts.get(name, 0)), not counts.get(name))
    wrong = result["log"]["wrong"]
    on_wrong_prefix = wrong.get("prefix_mismatched", 0)
    yield Line(part, "tokens on a wrong prefix", "0", str(on_wrong_prefix), not on_wrong_prefix)
    others = {name: number for name, number in wrong.items() if name != "prefix_mismatched"}
    yield Line(part, "other faults of the log", "none", str(others or "none"), not others)
    verify = result["verify"]
    is_clean = not verify["wrong"] and not verify["differ"]
    text = f"{verify['wrong'] or 'clean'}, {len(verify['differ'])} of {verify['compared']} requests differ"
    yield Line(part, "tokenbus log verify", "clean", text, is_clean)
    witness = result["witness"]
    saw_all = not witness["reloads"] and witness["error"] == "''"
    yield Line(part, "the log was seen whole", "yes", "yes" if saw_all else str(witness), saw_all)
    yield Line(part, "processes replaced that were not hit", "0", str(len(result["pids"])), not result["pids"])
    yield _rest(part, "at rest after the load", result["rest"])
    bad = {name: how for name, hows in result["deaths"].items() for how in hows if how not in GOOD_ENDS}
    yield Line(part, "ends other than SIGKILL, status 0 and a deposed leader's", "none", str(bad or "none"), not bad)


def _rest(part: str, what: str, rest: dict[str, Any]) -> Line:
    left = rest["left"]
    return Line(part, what, "within 10 s", f"{rest['seconds']} s" if not left else "; ".join(left[:4]), not left)


def _main(options: Options, result: dict[str, Any]) -> Iterator[Line]:
    if options.faults:
        yield from _faults(options, result)
    if "storm" in result:
        storm = result["storm"]
        what = f"at rest after {storm['requests']} cancels"
        yield _rest("main", what, storm["rest"])
        missed = [moment for moment in MOMENTS if not storm["moments"].get(moment)]
        text = f"not {', '.join(missed)}" if missed else "yes"
        yield Line("main", f"clients left: {', '.join(MOMENTS)}", "yes", text, not missed or storm["requests"] < MANY)
        left = storm["without_outcome"]
        yield Line("main", "cancelled requests without outcome", "0", str(left), not left)


def _speed(options: Options, result: dict[str, Any]) -> Iterator[Line]:
    if options.faults:
        speeds = result["tokens_per_s"]
        share = speeds["under_faults"] / speeds["without_faults"] if speeds["without_faults"] else 0.0
        text = f"{share:.0%} ({speeds['under_faults']} of {speeds['without_faults']} tokens/s)"
        yield Line("main", "goodput under faults", f">= {MIN_GOODPUT:.0%}", text, share >= MIN_GOODPUT)
    if options.engine == "fake":
        for service, limit in MAX_STALL_P99_S.items():
            yield _stall(service, limit, result)


def _faults(options: Options, result: dict[str, Any]) -> Iterator[Line]:
    by_service = {
        service: sum(number for kind, number in kinds.items() if kind not in ("cut", "delay"))
        for service, kinds in result["faults"].items()
    }
    planned = int(60 * options.minutes / options.every_s)
    required = ENOUGH_FAULTS if planned >= ENOUGH_FAULTS else int(0.9 * planned)
    required = required if options.judges_speed else 1  # a slow machine may not be well again in time for the next
    number = sum(by_service.values())
    yield Line("main", "kills and stalls", f">= {required}", str(number), number >= required)
    if planned >= MANY_FAULTS:
        missing = set(options.services) - by_service.keys()
        yield Line("main", "every service was hit", "yes", f"not {sorted(missing)}" if missing else "yes", not missing)


def _stall(service: str, limit: float, result: dict[str, Any]) -> Line:
    what = f"longest stall after kill -9 of {service}, p99"
    found, num_kills = result["stalls_after_kill"].get(service), result["kills_alone"].get(service, 0)
    if found is None:
        text = f"no stall of 0.2 s in {num_kills} kills without another fault"
        return Line("main", what, f"<= {limit} s", text, True if num_kills else None)
    text = f"{found['p99_s']} s (p50 {found['p50_s']}, max {found['max_s']}; {found['stalls']} stalls)"
    return Line("main", what, f"<= {limit} s", text, found["p99_s"] <= limit)


def _losses(result: dict[str, Any]) -> Iterator[Line]:
    """That messages were lost and a step hung at all."""
    for count, what in (("frame_gap", "frames lost before the log"), ("fence_worker", "workers fenced")):
        number = result["log"]["counts"].get(count, 0)
        yield Line("losses", what, ">= 1", str(number), number >= 1)


def _soak(result: dict[str, Any]) -> Iterator[Line]:
    slopes = result["slopes_mb_per_h"]
    if not slopes:
        yield Line("soak", "slope of resident memory", f"< {MAX_SLOPE_MB_PER_H} MB/h", "too short to tell", None)
    for name, slope in sorted(slopes.items()):
        what = f"slope of resident memory, {name}"
        owned = slope >= MAX_SLOPE_MB_PER_H and bool(result["heap_diffs"].get(name))
        text = f"{slope} MB/h{', owners named' if owned else ''}"
        required = f"< {MAX_SLOPE_MB_PER_H} MB/h, or owners named"
        yield Line("soak", what, required, text, slope < MAX_SLOPE_MB_PER_H or owned)
