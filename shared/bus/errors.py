"""What can go wrong on the bus, in terms of ours."""


class BusError(RuntimeError):
    """Base of the errors below, so that callers may retry on any of them."""


class NotConnected(BusError):
    """There is no connection at the moment; the bus goes on trying."""


class NoResponders(BusError):
    """Nobody listens on the subject of a request."""


class PayloadTooLarge(BusError):
    """A message over the server's max_payload; sending it would close the connection and all its streams."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"message of {size} bytes exceeds max_payload of {limit} bytes")
        self.size = size
        self.limit = limit
