"""python -m services.scheduler"""

from services.scheduler.config import SchedulerConfig
from services.scheduler.service import serve
from shared import service


def main(argv: list[str] | None = None) -> None:
    """Run the scheduler; ends the process."""
    service.main("scheduler", SchedulerConfig, serve, argv)


if __name__ == "__main__":
    main()
