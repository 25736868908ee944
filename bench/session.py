"""What every command needs before it can measure: a server, its processes, and prompts for its tokenizer."""

import contextlib
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from bench import workloads
from bench.client.target import Target
from bench.core.goodput import Objective
from bench.core.plan import Plan
from bench.core.summary import Summary
from bench.errors import BenchError
from bench.measure import measure, measure_in_turn
from bench.node import Node
from bench.options import TargetOptions
from bench.processes import ProcessMeter, by_pids
from bench.prompts import PromptMaker
from deploy.node.limits import raise_file_limit

ASK_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Session:
    """meter: None if the server's processes are not known. node: None unless this session started it."""

    options: TargetOptions
    target: Target
    prompts: PromptMaker
    meter: ProcessMeter | None
    node: Node | None

    def warm_up(self) -> None:
        """Some short requests that are not measured: connections, caches, kernels. Raises BenchError if they fail."""
        if not self.options.num_warmups:
            return
        plan = workloads.make("warm", self.prompts)
        requests = [plan.requests[index % len(plan.requests)] for index in range(self.options.num_warmups)]
        summary = self.measure(Plan("warm", requests, plan.max_concurrency))
        if summary.failed:
            raise BenchError(f"{self.target.base_url} fails: {next(iter(summary.errors))}")

    def measure(self, plan: Plan, objective: Objective | None = None) -> Summary:
        """The plan once against this server."""
        return measure(self.target, plan, self.meter, objective, self.options.request_timeout_s)

    def measure_in_turn(self, plans: Sequence[Plan]) -> tuple[Summary, list[float]]:
        """Plans of one kind one after the other: a summary of all, and the seconds of each."""
        return measure_in_turn(self.target, plans, self.meter, None, self.options.request_timeout_s)


@contextlib.contextmanager
def open_session(options: TargetOptions, node_options: Sequence[str]) -> Iterator[Session]:
    """A session with the server at --base-url, or with a node that lives as long. Raises BenchError."""
    raise_file_limit()
    if not options.base_url:
        with Node(*node_options) as node:
            yield _session(options, node.url, options.model or node.model, ProcessMeter.of_node(node.data_dir), node)
        return
    if node_options:
        raise BenchError("options of a node after -- need a node: leave out --base-url")
    model = options.model or _first_model(options)
    yield _session(options, options.base_url, model, _meter(options), None)


def _session(options: TargetOptions, url: str, model: str, meter: ProcessMeter | None, node: Node | None) -> Session:
    target = Target(
        base_url=url,
        model=model,
        backend=options.backend,
        endpoint=options.endpoint,
        prompt_format=options.prompt_format,
        exact=options.ignore_eos,
        temperature=options.temperature,
        extra_body=_extra_body(options.extra_body),
        headers=_headers(options.header),
    )
    return Session(options, target, PromptMaker.find(options.tokenizer or model), meter, node)


def _meter(options: TargetOptions) -> ProcessMeter | None:
    if options.data_dir:
        return ProcessMeter.of_node(Path(options.data_dir))
    if not options.pids:
        return None
    missing = [pid for pid in options.pids if not by_pids([pid])]
    if missing:
        raise BenchError(f"--pids: there is no process {missing[0]}")
    return ProcessMeter.of_pids(options.pids)


def _first_model(options: TargetOptions) -> str:
    url = options.base_url.rstrip("/").removesuffix("/v1") + "/v1/models"
    request = urllib.request.Request(url, headers=_headers(options.header))
    try:
        with urllib.request.urlopen(request, timeout=ASK_LIMIT_S) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise BenchError(f"{url} names no model ({reason}): give --model, or another --base-url") from None


def _extra_body(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise BenchError(f"--extra-body is no JSON object: {error}") from None


def _headers(given: Sequence[str]) -> dict[str, str]:
    headers = pairs(given, "--header")
    key = os.environ.get("OPENAI_API_KEY")
    return {"Authorization": f"Bearer {key}", **headers} if key else headers


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """KEY=VALUE words of an option. Raises BenchError."""
    for word in given:
        if "=" not in word.strip("="):
            raise BenchError(f"{option}: {word!r} is not KEY=VALUE")
    return dict(word.split("=", 1) for word in given)
