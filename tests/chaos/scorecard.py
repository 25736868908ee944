"""docs/reliability.md from the result file: numbers only ever come from runs."""

from collections.abc import Iterable, Iterator
from typing import Any

KINDS = ("kill", "term", "blink", "stall", "cut", "delay")
MAX_DIFF_LINES = 30
HEAD = """# Reliability

Written by `./just chaos` from bench/results/chaos.json; not edited by hand.

Real processes of `tokenbus up`, two of each service, and nats-server behind a proxy of ours, under load from clients
that resume their streams; the fake engine draws tokens that cannot be repeated, so only a correct protocol gives every
client the tokens of the log. A ledger holds what each client received, a witness folds the log from its first record,
and they are compared token by token. `tests/chaos` is the code.
"""
LEGEND = """
kill: SIGKILL. term: SIGTERM. blink: SIGSTOP for 0.95 to 1.45 s, around the second after which a process is given up.
stall: SIGSTOP for 3 to 30 s, then SIGCONT. cut: nothing passes between the process and nats-server for up to 8 s.
delay: 200 ms and jitter in both directions. A client whose connection breaks reads on through the port that all
gateways share; from a gateway that is silent for 3 s, as a stopped one is, it goes away by itself.
"""


def markdown(runs: list[dict[str, Any]]) -> str:
    """The whole page, run after run."""
    blocks = [HEAD, *(block for run in runs for block in _run(run))]
    return "\n".join(block.strip("\n") + "\n" for block in blocks)


def _run(run: dict[str, Any]) -> list[str]:
    parts = run["parts"]
    machine, versions = run["machine"], run["versions"]
    about = [
        ("command", f"`{run['command'].strip()}`"),
        ("seed", run["seed"]),
        ("ended", run["ended"]),
        ("machine", f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB"),
        ("versions", ", ".join(f"{name} {text}" for name, text in versions.items())),
    ]
    blocks = [f"\n## Run: {', '.join(parts)}\n", table(("", ""), about)]
    if "faults" in parts.get("main", {}):
        blocks += _main(parts["main"])
    if "kills" in parts.get("single", {}):
        blocks += _single(parts["single"])
    if "slopes_mb_per_h" in parts.get("soak", {}):
        blocks += _soak(parts["soak"])
    verdict = table(("part", "what", "required", "measured", "held"), _verdict(run["verdict"]))
    return [*blocks, "\n### Verdict\n", verdict]


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table of markdown."""
    head = list(head)
    lines: list[Iterable[object]] = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |\n" for line in lines)


def _verdict(lines: list[dict[str, Any]]) -> Iterator[list[object]]:
    for line in lines:
        held = {True: "yes", False: "**NO**", None: "not measured"}[line["holds"]]
        yield [line["part"], line["what"], line["required"], line["measured"], held]


def _main(main: dict[str, Any]) -> list[str]:
    faults = [
        [service, *(kinds.get(kind, 0) for kind in KINDS), sum(kinds.values())]
        for service, kinds in main["faults"].items()
    ]
    recovery = [
        [service, each["kills_with_stalls"], each["stalls"], each["p50_s"], each["p99_s"], each["max_s"]]
        for service, each in main["stalls_after_kill"].items()
    ]
    others = [[cause, each["stalls"], each["p50_s"], each["max_s"]] for cause, each in main["stalls_otherwise"].items()]
    return [
        f"\n### Faults survived in {main['seconds']} s\n",
        table(("victim", *KINDS, "all"), faults),
        LEGEND,
        "\n### Recovery: gaps of 0.2 s and more between two tokens of a stream\n",
        "After a kill -9, with the replica well and no other fault open:\n",
        table(("victim", "kills", "stalls", "p50 s", "p99 s", "max s"), recovery),
        "\nAfter all other faults, and where several were open at once (named after the newest):\n",
        table(("fault", "stalls", "p50 s", "max s"), others),
    ]


def _single(single: dict[str, Any]) -> list[str]:
    ready = ", ".join(str(seconds) for seconds in single["ready_after_s"])
    text = (
        f"{single['kills']} kills of the only worker: streams stood still for {single['stall_p50_s']} s (p50), "
        f"{single['stall_max_s']} s at most; the new worker was ready after {ready} s."
    )
    return ["\n### A single worker: its restart time\n", text]


def _soak(soak: dict[str, Any]) -> list[str]:
    rows = [[name, slope, soak["resident_mb"].get(name, "")] for name, slope in sorted(soak["slopes_mb_per_h"].items())]
    text = f"{soak['hours']} h, of which the first {soak['warm_up_s']} s of each process are its warm-up."
    owners = [
        f"\nWhat grew in {name}, largest first:\n\n```\n" + "\n".join(diff.splitlines()[:MAX_DIFF_LINES]) + "\n```"
        for name, diff in soak["heap_diffs"].items()
    ]
    return [
        "\n### Soak: resident memory\n",
        text,
        table(("process/pid", "MB per hour", "MB at the end"), rows),
        *owners,
    ]
