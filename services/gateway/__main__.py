"""python -m services.gateway: the same as `tokenbus gateway`."""

from services.gateway.config import GatewayConfig
from services.gateway.service import serve
from shared import service


def main(argv: list[str] | None = None) -> None:
    """Run a gateway until it is told to stop."""
    service.main("gateway", GatewayConfig, serve, argv)


if __name__ == "__main__":
    main()
