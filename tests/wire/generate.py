"""Writes the bytes of a release, under the code of that release: run as a script whose sys.path leads to it.

Prints JSON: messages (each struct of the wire in several variants), and a short log with the snapshot that this
release's fold makes of it.
"""

import json
import sys
from importlib import import_module
from typing import Any

import msgspec

MODULES = (
    "shared.messages.sampling",
    "shared.messages.pipeline",
    "shared.messages.control",
    "shared.messages.client",
    "shared.log.state",
    "shared.log.snapshot",
)
SECOND_NS = 10**9


def kinds() -> list[type[msgspec.Struct]]:
    """Every struct that is on the wire or in a snapshot, in the order in which it is defined."""
    found: list[type[msgspec.Struct]] = []
    for name in MODULES:
        members = vars(import_module(name)).values()
        found += [m for m in members if isinstance(m, type) and issubclass(m, msgspec.Struct) and m.__module__ == name]
    return found


def messages() -> list[dict[str, Any]]:
    """Every kind in its variants: bytes, and what they mean."""
    from samples import plain, variants

    listed: list[dict[str, Any]] = []
    for kind in kinds():
        for variant, message in variants(kind).items():
            entry = {
                "kind": kind.__name__,
                "variant": variant,
                "msgpack": msgspec.msgpack.encode(message).hex(),
                "value": plain(message),
            }
            if not kind.__struct_config__.array_like:
                entry["json"] = msgspec.json.encode(message).decode()
            listed.append(entry)
    return listed


def records() -> list[tuple[str, bytes]]:
    """A log in which something of everything happens."""
    from shared.messages.packed import pack, pack_tokens
    from shared.messages.pipeline import Done, End, Fence, Request, Rows
    from shared.messages.sampling import Sampling
    from shared.prefix_hash import extend

    encode = msgspec.msgpack.encode
    prompt = pack_tokens([3, 4, 5])

    def request(name: str, n: int = 1) -> tuple[str, bytes]:
        sampling = Sampling(max_tokens=3, n=n, seed=9, stop=("x",), logit_bias={7: 0.5})
        return "req", encode(
            Request(
                request_id=name * 32,
                model="m",
                model_version="1",
                prompt_token_ids=prompt,
                sampling=sampling,
                deadline_ns=10**18,
            )
        )

    def rows(step: int, epoch: int, tokens: dict[int, list[int]]) -> tuple[str, bytes]:
        hashes = [extend(extend(0, prompt), pack_tokens(ids[:-1])) for ids in tokens.values()]
        return "out", encode(
            Rows(
                worker="w1",
                epoch=epoch,
                step=step,
                sequences=pack("Q", tokens),
                positions=pack_tokens(len(ids) - 1 for ids in tokens.values()),
                tokens=pack_tokens(ids[-1] for ids in tokens.values()),
                prefix_hashes=pack("I", hashes),
            )
        )

    first, second, third = 2 << 8, 3 << 8, (3 << 8) + 1
    return [
        ("fence", encode(Fence(kind="takeover", leader="s1"))),
        request("a"),
        request("b", n=2),
        rows(1, 1, {first: [11], second: [21], third: [31]}),
        rows(2, 1, {first: [11, 12], second: [21, 22]}),
        ("fence", encode(Fence(kind="worker", leader="s1", worker="w1"))),
        rows(3, 1, {first: [11, 12, 13]}),
        rows(1, 6, {first: [11, 12, 14], third: [31, 32]}),
        ("end", encode(End(request_id="b" * 32, choice=0, reason="cancel"))),
        ("end", encode(Done(request_id="a" * 32, positions=(3,), reasons=("length",)))),
        ("end", encode(End(request_id="c" * 32, reason="cancel"))),
        request("d"),
    ]


def json_lines(release: dict[str, Any]) -> str:
    """JSON with one message a line, for eyes and diffs."""
    parts = []
    for name, value in release.items():
        is_list = isinstance(value, list)
        lines = ",\n".join(json.dumps(item) for item in value) if is_list else json.dumps(value)
        parts.append(f"{json.dumps(name)}: [\n{lines}\n]" if is_list else f"{json.dumps(name)}: {lines}")
    return "{" + ",\n".join(parts) + "}"


def main() -> None:
    """See the module."""
    from samples import plain

    from shared.log import snapshot
    from shared.log.fold import Fold

    fold = Fold()
    log = []
    for number, (kind, data) in enumerate(records(), 1):
        log.append({"kind": kind, "msgpack": data.hex(), "clock_ns": number * SECOND_NS})
        fold.apply(kind, data, number, number * SECOND_NS)
    image = snapshot.capture(fold)
    release = {
        "messages": messages(),
        "log": log,
        "snapshot": {"msgpack": snapshot.encode(image).hex(), "value": plain(image)},
    }
    sys.stdout.write(json_lines(release))


if __name__ == "__main__":
    main()
