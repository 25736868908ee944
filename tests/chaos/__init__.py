"""Real processes, real faults, and a proof of what held: `python -m tests.chaos --help` (./just chaos)."""
