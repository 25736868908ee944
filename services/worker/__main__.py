"""`tokenbus worker` and `python -m services.worker`."""

from services.worker.config import WorkerConfig
from services.worker.native_threads import leave
from services.worker.service import serve
from shared import service


def main(argv: list[str] | None = None) -> None:
    """Run a worker until SIGTERM; ends the process, whatever the engine is at."""
    try:
        service.main("worker", WorkerConfig, serve, argv)
    except SystemExit as ending:
        if not isinstance(ending.code, int):
            raise
        leave(ending.code)


if __name__ == "__main__":
    main()
