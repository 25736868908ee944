"""`python -m services.worker.rank`: a rank of a worker's group other than the first. Only rank 0 starts it.

It computes what rank 0 tells it through stdin, and ends when that is closed, whatever it is at: a reader's thread sees
to it, since a step may wait for other ranks that are gone, too.
"""

import os
import shutil
import signal
import sys
import threading
from queue import SimpleQueue
from typing import NoReturn

import msgspec
from structlog.typing import FilteringBoundLogger

from services.worker.engine.interface import ModelEngine
from services.worker.engine.threads import sleep_while_waiting
from services.worker.loading import load_rank_engine
from services.worker.native_threads import NICENESS
from services.worker.niceness import step_back
from services.worker.parallel.orders import Join, Order, Step, Swap, orders_from
from shared.logs import configure_logging, get_logger
from shared.service import StartError


def main() -> NoReturn:
    """Follow rank 0; ends the process."""
    # These are rank 0's affair: it drains first, and its end is ours.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    orders: SimpleQueue[Order] = SimpleQueue()
    threading.Thread(target=_read, args=(orders,), name="orders", daemon=True).start()
    join = orders.get()
    if not isinstance(join, Join):
        raise TypeError(f"the first order is a {type(join).__name__}")
    configure_logging(join.config.log_level, join.config.log_format)
    log = get_logger(service="worker", instance=join.config.name, rank=join.rank)
    step_back(NICENESS)
    sleep_while_waiting()
    _leave(_follow(join, orders, log))


def _read(orders: "SimpleQueue[Order]") -> None:
    """Ends the process with the pipe, and on what is no order.

    Where the ranks met goes with it: rank 0 has no chance to remove that if it is killed.
    """
    folder = None
    try:
        for order in orders_from(sys.stdin.buffer):
            orders.put(order)
            if isinstance(order, Join):
                folder = order.folder
    except msgspec.MsgspecError:
        get_logger(service="worker").exception("what rank 0 says is no order")
        _leave(1)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
    _leave(0)


def _follow(join: Join, orders: "SimpleQueue[Order]", log: FilteringBoundLogger) -> int:
    """The exit status, once something has gone wrong."""
    try:
        engine = load_rank_engine(join)
        while True:
            _obey(engine, orders.get())
    except StartError as error:
        log.error("cannot start", reason=str(error))
        return 2
    except BaseException:
        log.exception("this rank failed")
        return 1


def _obey(engine: ModelEngine, order: Order) -> None:
    if isinstance(order, Step):
        engine.compute_logits(order.batch())
    elif isinstance(order, Swap):
        engine.swap(order.swaps())
    else:
        engine.warm_up()


def _leave(status: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
