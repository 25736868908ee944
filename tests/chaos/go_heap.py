"""The live heap of nats-server: what is left after a garbage collection, and who allocated it.

Its resident memory rises and falls by half between two collections, which says little about a leak.
"""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from deploy.node.http_get import http_get
from deploy.node.nats_server import free_port
from tests.servers import NatsServer

PROFILE = "/debug/pprof/heap?gc=1&debug=1"
MAX_OWNERS = 8
_RECORD = re.compile(r"^(\d+): (\d+) \[\d+: \d+\] @")
_FRAME = re.compile(r"^#\t0x[0-9a-f]+\t(\S+)\+0x")
_LIVE = re.compile(r"^# HeapAlloc = (\d+)", re.MULTILINE)


class ProfiledNatsServer(NatsServer):
    """A nats-server that can be asked for its heap."""

    def __init__(self, folder: Path) -> None:
        self.profile_port = free_port()
        super().__init__(folder)

    def write_config(self, path: Path) -> None:
        super().write_config(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"prof_port: {self.profile_port}\n")

    async def heap(self) -> "GoHeap":
        """Collect garbage and look."""
        status, body = await http_get(self.profile_port, PROFILE)
        text = body.decode()
        assert status == 200, text[:200]
        return parse(self.pid, text)


@dataclass(frozen=True, slots=True)
class GoHeap:
    """live_bytes: all of it. owners: sampled bytes in use by the innermost function of nats-server that asked."""

    pid: int
    live_bytes: int
    owners: Counter[str]


def parse(pid: int, text: str) -> GoHeap:
    """A heap profile in Go's text form."""
    live = _LIVE.search(text)
    assert live is not None, "no heap profile"
    owners: Counter[str] = Counter()
    in_use = 0
    for line in text.splitlines():
        if record := _RECORD.match(line):
            in_use = int(record[2])
        elif in_use and (frame := _FRAME.match(line)) and "nats-server" in frame[1]:
            owners[frame[1].rpartition("/")[2]] += in_use
            in_use = 0
    return GoHeap(pid, int(live[1]), owners)


def difference(before: GoHeap, after: GoHeap) -> str:
    """One line per owner, those that grew most first."""
    grown = Counter(after.owners)
    grown.subtract(before.owners)
    head = f"live heap {before.live_bytes / 1e6:.1f} -> {after.live_bytes / 1e6:.1f} MB"
    return "\n".join([head, *(f"{size:+d} bytes  {name}" for name, size in grown.most_common(MAX_OWNERS) if size)])
