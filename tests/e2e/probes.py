"""What the processes of a running node say on their health listeners."""

import re
import urllib.error
import urllib.request

from tests.nodes import RunningNode
from tests.waiting import LIMIT_S


def health_url(log: str) -> str:
    """Where a process listens, from its log; the newest start's if it was started again."""
    lines = [line for line in log.splitlines() if "health listener" in line]
    found = re.search(r"http://127\.0\.0\.1:\d+", lines[-1] if lines else "")
    assert found is not None, log
    return found[0]


def get(url: str) -> tuple[int, str]:
    """Status and body. Blocks."""
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def sample(text: str, name: str) -> float:
    """A sample without labels, from the text of /metrics."""
    found = sample_or_none(text, name)
    assert found is not None, name
    return found


def sample_or_none(text: str, name: str) -> float | None:
    """None from a process that listens already and has not come to its own metrics yet."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return None if found is None else float(found[1])


def probe(node: RunningNode, process: str, path: str) -> str:
    """The body of a path on a process's health listener, which must answer 200. Blocks."""
    status, text = get(health_url(node.log(process)) + path)
    assert status == 200, text
    return text


def metric(node: RunningNode, process: str, name: str) -> float:
    """A sample of a process's /metrics. Blocks."""
    return sample(probe(node, process, "/metrics"), name)
