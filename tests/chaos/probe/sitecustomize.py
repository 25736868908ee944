"""On the PYTHONPATH of a soaked process: SIGUSR2 begins to trace its allocations, the next one writes what has grown.

Until then it costs nothing. The diff goes to $TOKENBUS_HEAP_FOLDER/<pid>.txt, whole at once.
"""

import os
import signal
import tracemalloc
from types import FrameType

NUM_FRAMES = 8
NUM_OWNERS = 15

_before: list[tracemalloc.Snapshot] = []


def _on_signal(number: int, frame: FrameType | None) -> None:
    if not tracemalloc.is_tracing():
        tracemalloc.start(NUM_FRAMES)
        _before.append(tracemalloc.take_snapshot())
        return
    grown = tracemalloc.take_snapshot().compare_to(_before.pop(), "traceback")
    tracemalloc.stop()
    lines = []
    for each in grown[:NUM_OWNERS]:
        lines.append(f"{each.size_diff:+} bytes, {each.count_diff:+} objects")
        lines += each.traceback.format()
    path = os.path.join(os.environ["TOKENBUS_HEAP_FOLDER"], f"{os.getpid()}.txt")
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(path + ".new", path)


signal.signal(signal.SIGUSR2, _on_signal)
