"""python -m services.detokenizer"""

from services.detokenizer.config import DetokenizerConfig
from services.detokenizer.service import serve
from shared import service


def main(argv: list[str] | None = None) -> None:
    """Run the detokenizer; ends the process."""
    service.main("detokenizer", DetokenizerConfig, serve, argv)


if __name__ == "__main__":
    main()
