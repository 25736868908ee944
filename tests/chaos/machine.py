"""On what a result was measured."""

import datetime
import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

from deploy.node.nats_server import find_binary


def describe_machine() -> dict[str, object]:
    """Processor, cores, memory, versions, the tree's commit, and the time."""
    cpu = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    server = subprocess.run([str(find_binary()), "--version"], capture_output=True, text=True, check=False).stdout
    return {
        "machine": {
            "processor": cpu[1] if cpu else platform.processor(),
            "cores": os.cpu_count(),
            "memory_gb": round(int(memory[1]) / 1024**2) if memory else None,
            "system": f"{platform.system()} {platform.release()}",
        },
        "versions": {
            "python": platform.python_version(),
            "nats-server": server.strip().rpartition(" ")[2],
            "nats-py": version("nats-py"),
            "tokenbus": version("tokenbus"),
            "commit": _git("describe", "--always", "--dirty"),
        },
        "ended": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return done.stdout.strip()
