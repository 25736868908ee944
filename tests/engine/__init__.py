"""Engine tests. Importing this comes before torch in a run of these tests alone: its threads share busy cores."""

from services.worker.engine.threads import sleep_while_waiting

sleep_while_waiting()
