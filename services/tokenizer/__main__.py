"""`tokenbus tokenizer` and `python -m services.tokenizer`."""

from services.tokenizer.config import TokenizerConfig
from services.tokenizer.service import serve
from shared import service


def main(argv: list[str] | None = None) -> None:
    """Run a tokenizer until SIGTERM."""
    service.main("tokenizer", TokenizerConfig, serve, argv)


if __name__ == "__main__":
    main()
