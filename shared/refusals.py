"""Codes of the refusals that a tokenizer decides before it has sent a request to the log.

They are said in one service and understood in others: whoever gets one of them knows that nothing is stored.
"""

from shared.queue_limits import QUEUE_FULL

TOO_MANY_REQUESTS = "too_many_requests"
NO_SCHEDULER = "no_scheduler"
STARTING = "starting"
NO_WORKER = "no_worker"
LOG_STUCK = "log_stuck"

BEFORE_STORING = frozenset({QUEUE_FULL, TOO_MANY_REQUESTS, NO_SCHEDULER, STARTING, NO_WORKER, LOG_STUCK})
