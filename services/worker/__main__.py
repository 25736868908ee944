"""`tokenbus worker` and `python -m services.worker`."""

from services.worker.config import WorkerConfig
from services.worker.service import serve
from shared import service


def main(argv: list[str] | None = None) -> None:
    """Run a worker until SIGTERM."""
    service.main("worker", WorkerConfig, serve, argv)


if __name__ == "__main__":
    main()
