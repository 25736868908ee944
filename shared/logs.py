"""Logging of a process: structlog for our own events, the standard library's records through the same renderer.

Prompts and generated text are never logged above DEBUG, so tracebacks show no local variables.
"""

import logging
import sys
from typing import Literal

import structlog
from structlog.typing import FilteringBoundLogger, Processor

Format = Literal["console", "json"]


def configure_logging(level: str, format: Format) -> None:
    """Send all log events of this process to stderr, as JSON lines or for people; level is a lower-case level name."""
    number = logging.getLevelNamesMapping()[level.upper()]
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[Processor]
    if format == "json":
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        render = [structlog.processors.ExceptionRenderer(tracebacks), structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        render = [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0, exception_formatter=plain)]
    structlog.configure(
        processors=[*before, *render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
            foreign_pre_chain=[*before, structlog.stdlib.add_logger_name],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(number, logging.WARNING) if number > logging.DEBUG else logging.INFO)


def get_logger(**context: object) -> FilteringBoundLogger:
    """A logger that adds these keys to every event."""
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger.bind(**context)
