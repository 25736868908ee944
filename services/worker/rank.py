"""`python -m services.worker.rank`: a rank of a worker's group other than the first. Only rank 0 starts it.

It computes what rank 0 tells it through stdin, and ends when that is closed, whatever it is at: a reader's thread sees
to it, since a step may wait for other ranks that are gone, too.
"""

import shutil
import signal
import sys
import threading
from queue import SimpleQueue
from typing import NoReturn

from structlog.typing import FilteringBoundLogger

from services.worker.engine.interface import ModelEngine
from services.worker.engine.threads import sleep_while_waiting
from services.worker.loading import load_rank_engine
from services.worker.native_threads import NICENESS, end_at_once
from services.worker.niceness import step_back
from services.worker.parallel.orders import Join, Order, Step, Swap, orders_from
from services.worker.parallel.ranks import IGNORED_SIGNALS
from shared.logs import configure_logging, get_logger
from shared.service import StartError


def main() -> NoReturn:
    """Follow rank 0; ends the process."""
    # These are rank 0's affair: it drains first, and its end is ours.
    for number in IGNORED_SIGNALS:
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
    status = 1
    try:
        status = _follow(join, orders, log)
    finally:
        end_at_once(status)


def _read(orders: "SimpleQueue[Order]") -> None:
    """Ends the process with the pipe, and on whatever is no order.

    Where the ranks met goes with it: rank 0 has no chance to remove that if it is killed.
    """
    folder, status = "", 1
    try:
        for order in orders_from(sys.stdin.buffer):
            orders.put(order)
            if isinstance(order, Join):
                folder = order.folder
        status = 0
        if folder:
            shutil.rmtree(folder, ignore_errors=True)
    except Exception:
        get_logger(service="worker").exception("what rank 0 says is no order")
    finally:  # without this thread the process would outlive rank 0
        end_at_once(status)


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


if __name__ == "__main__":
    main()
