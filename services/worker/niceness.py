"""Compute threads let the event loops go first (ADR 0012)."""

import os
import sys
import threading


def step_back(niceness: int) -> None:
    """Make the calling thread nicer by so much, up to 19; on Linux only, where niceness belongs to a thread.

    Threads that it starts from then on inherit it, those of native libraries too: whoever loads the engine and whoever
    calls it steps back first, and so all that computes does. The event loop's thread, which stays as it was, gets a
    core as soon as a plan or an acknowledgement is there. No privilege is needed, but there is no way back.
    """
    if niceness > 0 and sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + niceness))
