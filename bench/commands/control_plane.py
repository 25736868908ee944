"""`tokenbus bench control-plane`: what everything but the engine costs.

The fake engine makes tokens up at a given pace, so that what is left is gateway, tokenizer, scheduler, worker,
detokenizer and nats-server. With --base-url another server is measured under the same load.
"""

import random
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from bench.commands.frame import run, start_results
from bench.core.plan import Plan, PlannedRequest
from bench.core.summary import Summary
from bench.frames import frames_sent
from bench.options import Count, PromptFormatOption, ResultOptions
from bench.prompts import PromptMaker
from bench.report.publish import publish
from bench.session import Session, open_session

DESCRIPTION = "Measure CPU per output token of each process, with a fake engine and 1 to 2000 streams at a time."
MIN_REQUESTS = 20
MANY_STREAMS = 256


class ControlPlaneOptions(ResultOptions, kw_only=True, frozen=True):
    """Of control-plane."""

    prompt_format: PromptFormatOption = "text"
    streams: Annotated[tuple[Count, ...], Meta(description="streams at a time, measured one after the other")] = (
        1,
        16,
        64,
        256,
        1024,
        2000,
    )
    step_ms: Annotated[float, Meta(description="milliseconds of an engine step", ge=0)] = 5.0
    input_len: Annotated[int, Meta(description="tokens in", ge=1)] = 48
    output_len: Annotated[int, Meta(description="tokens out", ge=1)] = 128


class Frames(msgspec.Struct, frozen=True):
    """What one frame (an engine step) costs all processes of the node together."""

    frames: int
    rows_per_frame: float
    cpu_ms_per_frame: float


def main(argv: list[str]) -> int:
    """Exit status 0 if every request was answered in full."""
    return run("control-plane", ControlPlaneOptions, DESCRIPTION, argv, _control_plane)


def _control_plane(options: ControlPlaneOptions, node_options: Sequence[str]) -> int:
    results = start_results("control-plane", options)
    for group in _groups(options):
        fake = [] if options.base_url else fake_engine(options, group)
        with open_session(options, [*fake, *node_options]) as session:
            session.warm_up()
            for streams in group:
                plan = streams_plan(options, streams, session.prompts)
                summary, frames = _measure(session, plan)
                results.rows.append(summary)
                if frames is not None:
                    results.details.setdefault("frames", {})[plan.name] = frames
    return publish(results, options)


def _groups(options: ControlPlaneOptions) -> list[list[int]]:
    """Streams that are measured on the same node: the few, and the many, which need a larger step."""
    if options.base_url:
        return [list(options.streams)]
    few = [each for each in options.streams if each <= MANY_STREAMS]
    many = [each for each in options.streams if each > MANY_STREAMS]
    return [group for group in (few, many) if group]


def fake_engine(options: ControlPlaneOptions, streams: Sequence[int]) -> list[str]:
    """Options of a node whose steps hold all these streams: with the default budget of tokens a step would hold 512."""
    words = ["--engine", "fake", "--fake-step-ms", str(options.step_ms), "--max-num-seqs", str(max(streams))]
    if max(streams) > MANY_STREAMS:
        words += ["--max-num-batched-tokens", str(2 * max(streams))]
    return words


def streams_plan(options: ControlPlaneOptions, streams: int, prompts: PromptMaker) -> Plan:
    """So many streams at a time, each begun anew some times; the same prompts for every server."""
    draw = random.Random(f"control plane {streams} {options.seed}")
    num = max(MIN_REQUESTS, streams * (4 if streams <= MANY_STREAMS else 2))
    requests = [PlannedRequest(prompts.draw(draw, options.input_len), options.output_len) for _ in range(num)]
    return Plan("1 stream" if streams == 1 else f"{streams} streams", requests, streams)


def _measure(session: Session, plan: Plan) -> tuple[Summary, Frames | None]:
    if session.node is None:
        return session.measure(plan), None
    before = frames_sent(session.node)
    summary = session.measure(plan)
    num = frames_sent(session.node) - before
    total_us = summary.cpu_us_per_output_token.get("total", 0.0) * summary.total_output_tokens
    return summary, Frames(
        frames=num,
        rows_per_frame=round(summary.total_output_tokens / num, 2),
        cpu_ms_per_frame=round(total_us / num / 1e3, 3),
    )
