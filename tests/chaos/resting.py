"""What every process holds while nothing runs, and whether it comes back to that (invariant I4)."""

import asyncio
import os
import re

from tests.chaos.stack import NATS_SERVER, SERVICES, Stack

REST_S = 10.0  # invariant I4
POLL_S = 0.5
METRICS_TIMEOUT_S = 2.0

# Gauges that are 0 at rest, by service. Absent ones are an error: a check that sees nothing proves nothing.
ZERO_AT_REST = {
    "gateway": ("tokenbus_http_requests_running",),
    "tokenizer": (),
    "scheduler": (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "tokenbus_scheduler_integrity_problems",
    ),
    "worker": ("tokenbus_worker_frames_outstanding",),
    "detokenizer": ("tokenbus_detokenizer_readers",),
}
# Counts that may be no higher than they were in the beginning, with what a process may hold for a moment besides.
BACK_TO_BASELINE = {"tokenbus_asyncio_tasks": 2, "tokenbus_bus_subscriptions": 1}
WORKER_BACK_TO_BASELINE = {"tokenbus_worker_sequences": 16}  # those that ended last go with the plan that comes next
FILES = "open files"
FILES_SLACK = 2
SERVER_FILES_SLACK = 10  # nats-server opens and closes the files of its store as it likes

_SAMPLE = re.compile(r"^([a-zA-Z_:]+) ([0-9.e+-]+)$", re.MULTILINE)

Holdings = dict[str, dict[str, float]]


async def holdings(stack: Stack) -> Holdings:
    """By process name: its gauges of the tables above and its open files. A process without answer has none."""
    names = [name for service in SERVICES for name in stack.names(service)]
    return dict(zip(names, await asyncio.gather(*(_held_by(stack, name) for name in names)), strict=True)) | {
        NATS_SERVER: _files(stack, NATS_SERVER)
    }


async def _held_by(stack: Stack, name: str) -> dict[str, float]:
    _, text = await stack.get(name, "/metrics", METRICS_TIMEOUT_S)
    samples = {found[1]: float(found[2]) for found in _SAMPLE.finditer(text)}
    service = service_of(name)
    wanted = (*ZERO_AT_REST[service], *_slacks(service))
    return {key: samples[key] for key in wanted if key in samples} | _files(stack, name)


def _files(stack: Stack, name: str) -> dict[str, float]:
    pid = stack.pid(name)
    try:
        return {FILES: float(len(os.listdir(f"/proc/{pid}/fd")))}
    except OSError:
        return {}


def service_of(name: str) -> str:
    """The service of a process: worker for worker-0."""
    return name if name == NATS_SERVER else name.rpartition("-")[0]


def _slacks(service: str) -> dict[str, int]:
    if service == NATS_SERVER:
        return {FILES: SERVER_FILES_SLACK}
    return {FILES: FILES_SLACK} | BACK_TO_BASELINE | (WORKER_BACK_TO_BASELINE if service == "worker" else {})


def excess(now: Holdings, baseline: Holdings) -> list[str]:
    """What is held beyond the baseline, or not told at all, in words; empty when everything is back."""
    found = []
    for name, held in now.items():
        service = service_of(name)
        zeros = ZERO_AT_REST.get(service, ())
        found += [f"{name}: {key} is {held.get(key)}, not 0" for key in zeros if held.get(key) != 0]
        before = _baseline_of(service, baseline)
        for key, slack in _slacks(service).items():
            if key not in held or key not in before or held[key] > before[key] + slack:
                found.append(f"{name}: {key} is {held.get(key)}, {before.get(key)} before")
    return found


def _baseline_of(service: str, baseline: Holdings) -> dict[str, float]:
    """The most that any process of the service held: after a restart another one of them may lead or serve."""
    family = [held for name, held in baseline.items() if service_of(name) == service]
    return {key: max(held.get(key, 0.0) for held in family) for key in {key for held in family for key in held}}


async def come_to_rest(stack: Stack, baseline: Holdings) -> tuple[float, list[str]]:
    """Seconds until everything was back (REST_S at most), and what was not by then."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while True:
        left = excess(await holdings(stack), baseline)
        waited = loop.time() - begun
        if not left or waited > REST_S:
            return round(waited, 1), left
        await asyncio.sleep(POLL_S)
