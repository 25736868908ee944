"""The parts of a run, in order: with faults and storm, with lost messages, with a single worker; or a soak."""

import asyncio
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.chaos.faults import NATS_SERVER, Fault
from tests.chaos.go_heap import GoHeap, difference
from tests.chaos.heap import heap_diffs, probed_processes
from tests.chaos.options import Options
from tests.chaos.part import Part, Say, faults_by_victim, running_part
from tests.chaos.processes import slopes
from tests.chaos.stalls import attribute, kills_alone, percentile
from tests.chaos.storm import Storm
from tests.chaos.verdict import MAX_SLOPE_MB_PER_H

LOSSES_S = 30.0
LOST_SHARE = 0.015
HANG_STEP = 400
HANG_S = 8.0
NUM_SINGLE_KILLS = 4
SINGLE_EVERY_S = 12.0
MODEL_MINUTES = 1.0
MAX_WARM_S = 600.0


async def run_main(options: Options, folder: Path, say: Say) -> dict[str, Any]:
    """Two of each service: a part without faults, faults every few seconds, rest, cancel storm, rest."""
    async with running_part(options, folder, say, *options.node_options()) as part:
        loop = asyncio.get_running_loop()
        async with part.loaded():
            begun = loop.time() + 2.0
            say(f"{options.baseline_s:g} s without faults")
            await asyncio.sleep(2.0 + options.baseline_s)
            faults_at = loop.time()
            if options.faults:
                say(f"faults for {options.minutes:g} min, one every {options.every_s:g} s")
                await part.injector.run(60 * options.minutes, options.every_s)
            faults_end = loop.time()
        await part.until_outcomes()
        rest = await part.rest()
        watch = part.load.watch
        speeds = {
            "without_faults": round(watch.tokens_per_s(begun, faults_at), 1),
            "under_faults": round(watch.tokens_per_s(faults_at, faults_end), 1),
        }
        result = {"rest": rest, "tokens_per_s": speeds, "seconds": round(faults_end - faults_at, 1)}
        result |= _stalls(part) | {"faults": faults_by_victim(part.injector.records)}
        result["fault_history"] = [asdict(record) for record in part.injector.records]
        if options.storm:
            result["storm"] = await _storm(part)
        result["verify"] = await part.verify()
        return result | part.findings()


async def _storm(part: Part) -> dict[str, Any]:
    options = part.options
    loop = asyncio.get_running_loop()
    part.say(f"cancel storm of {options.storm}")
    before = dict(part.ledger.counts)
    begun = loop.time()
    storm = Storm(part.stack.gateways(), part.words.model, options.seed, part.ledger)
    await storm.run(options.storm, options.storm_at_once)
    seconds = loop.time() - begun
    rest = await part.rest()
    await part.until_outcomes()
    counts = {name: number - before.get(name, 0) for name, number in part.ledger.counts.items()}
    return {
        "requests": options.storm,
        "seconds": round(seconds, 1),
        "rest": rest,
        "moments": dict(storm.moments),
        "counts": {name: number for name, number in counts.items() if number},
        "without_outcome": part.ledger.num_open,
    }


async def run_losses(options: Options, folder: Path, say: Say) -> dict[str, Any]:
    """Plans, frames and deltas get lost, each worker's step HANG_STEP hangs, and a few processes are killed."""
    share = f"{LOST_SHARE:g}"
    drops = [text for what in ("plans", "frames", "deltas") for text in (f"--test-drop-{what}", share)]
    hang = ["--test-hang-step", str(HANG_STEP), "--test-hang-s", f"{HANG_S:g}"]
    kills = replace(options, faults=("kill", "blink"))
    async with running_part(kills, folder, say, *options.node_options(None, *drops, *hang)) as part:
        async with part.loaded():
            await part.injector.run(LOSSES_S, 2 * options.every_s)
        await part.until_outcomes()
        rest = await part.rest()
        result = {"rest": rest, "faults": faults_by_victim(part.injector.records), "lost_share": LOST_SHARE}
        result["verify"] = await part.verify()
        return result | _stalls(part) | part.findings()


async def run_single(options: Options, folder: Path, say: Say) -> dict[str, Any]:
    """A single worker is killed a few times: nobody can take over, its restart is what clients wait for."""
    kills = replace(options, faults=("kill",), services=("worker",))
    async with running_part(kills, folder, say, *options.node_options(1)) as part:
        async with part.loaded():
            for _ in range(NUM_SINGLE_KILLS):
                await part.injector.inject(Fault("kill", ("worker",), 0.0, False))
                await asyncio.sleep(SINGLE_EVERY_S)
            await part.injector.heal_all()
        await part.until_outcomes()
        stalls = [stall.seconds for stall in part.load.watch.stalls]
        ready = [record.healed_at - record.at for record in part.injector.records if record.healed_at is not None]
        result = {
            "kills": len(part.injector.records),
            "stall_p50_s": round(percentile(stalls, 0.5), 2),
            "stall_max_s": round(max(stalls, default=0.0), 2),
            "ready_after_s": [round(seconds, 2) for seconds in ready],
        }
        result["rest"] = await part.rest()
        result["verify"] = await part.verify()
        return result | part.findings()


async def run_model(options: Options, folder: Path, say: Say) -> dict[str, Any]:
    """The real model for a minute: on the CPU, with few and short streams."""
    minutes = min(MODEL_MINUTES, options.minutes)
    few = replace(options, engine="cpu", minutes=minutes, streams=4, max_tokens=100, baseline_s=5.0, storm=0)
    return await run_main(few, folder, say)


async def run_soak(options: Options, folder: Path, say: Say) -> dict[str, Any]:
    """Load for hours with few faults or none; memory of every process against time, and who owns what grows."""
    seconds = 3600 * options.hours
    warm_s = min(MAX_WARM_S, seconds / 3)
    heaps = folder.with_name("heaps")
    with probed_processes(heaps):
        async with running_part(options, folder, say, *options.node_options()) as part:
            async with part.loaded():
                warm = asyncio.create_task(_warm_heap(part, warm_s))
                if options.faults:
                    await part.injector.run(seconds, options.every_s)
                else:
                    await asyncio.sleep(seconds)
                result = _memory(part, warm_s) | {"hours": options.hours}
                result["heap_diffs"] = await _heap_diffs(part, result["slopes_mb_per_h"], heaps, await warm)
            await part.until_outcomes()
            result["rest"] = await part.rest()
            result["faults"] = faults_by_victim(part.injector.records)
            result["verify"] = await part.verify()
            return result | part.findings()


def _memory(part: Part, warm_s: float) -> dict[str, Any]:
    memory = part.watch.memory
    return {
        "warm_up_s": round(warm_s),
        "slopes_mb_per_h": slopes(memory, warm_s),
        "resident_mb": {f"{name}/{pid}": round(each.sizes[-1] / 1e6, 1) for (name, pid), each in memory.items()},
        "resident_mb_by_minute": {
            f"{name}/{pid}": " ".join(f"{size / 1e6:.1f}" for size in each.sizes[::6])
            for (name, pid), each in memory.items()
        },
    }


async def _warm_heap(part: Part, warm_s: float) -> GoHeap:
    await asyncio.sleep(warm_s)
    return await part.stack.server.heap()


async def _heap_diffs(part: Part, found: dict[str, float], folder: Path, warm: GoHeap) -> dict[str, str]:
    """Of the processes that still run and grow by more than is allowed; of nats-server since its warm-up."""
    now = {f"{name}/{pid}": pid for name, pid in part.stack.pids().items()}
    growing = {key: now[key] for key, value in found.items() if value >= MAX_SLOPE_MB_PER_H and key in now}
    if not growing:
        return {}
    part.say(f"heap diffs of {', '.join(growing)}")
    server = growing.pop(f"{NATS_SERVER}/{part.stack.server.pid}", None)
    diffs = await heap_diffs(folder, growing)
    if server == warm.pid:
        diffs[f"{NATS_SERVER}/{server}"] = difference(warm, await part.stack.server.heap())
    return diffs


def _stalls(part: Part) -> dict[str, Any]:
    """Recovery by victim: p50, p99 and the longest of the stalls, and of the longest stall of each kill."""
    found = attribute(part.load.watch.stalls, part.injector.records)
    clean = {}
    for service, pairs in sorted(found.clean.items()):
        seconds = [each for _, each in pairs]
        longest: dict[int, float] = {}
        for number, each in pairs:
            longest[number] = max(each, longest.get(number, 0.0))
        clean[service] = {
            "kills_with_stalls": len(longest),
            "stalls": len(seconds),
            "p50_s": round(percentile(seconds, 0.5), 2),
            "p99_s": round(percentile(seconds, 0.99), 2),
            "max_s": round(max(seconds), 2),
            "longest_of_kill_p50_s": round(percentile(longest.values(), 0.5), 2),
        }
    mixed = {
        cause: {"stalls": len(each), "p50_s": round(percentile(each, 0.5), 2), "max_s": round(max(each), 2)}
        for cause, each in sorted(found.mixed.items())
    }
    unexplained = [stall.seconds for stall in found.unexplained]
    return {
        "kills_alone": dict(kills_alone(part.injector.records)),
        "stalls_after_kill": clean,
        "stalls_otherwise": mixed,
        "slow_streams": part.load.slow,
        "stalls_without_fault": {"stalls": len(unexplained), "max_s": round(max(unexplained, default=0.0), 2)},
    }
