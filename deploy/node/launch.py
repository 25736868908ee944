"""Become a command that dies with its parent: launch.py PARENT_PID TIMER_SLACK_NS COMMAND...

A supervisor that is killed with SIGKILL cannot stop its children; on Linux the kernel does it then. Set here, between
fork and exec, because a hook in the forked child of a threaded process may deadlock. TIMER_SLACK_NS: by how much the
kernel may delay what the command's sleeps and timeouts wait for; 0: as it does by itself. Standard library only.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29


def main(argv: list[str]) -> None:
    """Replace this process by the command; exit 127 with a line on stderr if it cannot be run."""
    parent, timer_slack_ns, command = int(argv[0]), int(argv[1]), argv[2:]
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if timer_slack_ns:
            prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(timer_slack_ns))
    if os.getppid() != parent:
        raise SystemExit(1)  # the parent died before the kernel was told
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        raise SystemExit(127) from None


if __name__ == "__main__":
    main(sys.argv[1:])
