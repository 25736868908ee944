"""Tests of tensor parallelism. Importing this comes before torch, as in tests/engine."""

from services.worker.engine.threads import sleep_while_waiting

sleep_while_waiting()
