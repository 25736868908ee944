"""Requests in the order of their deadlines."""

import heapq


class Deadlines:
    """A heap of (deadline, request id). Times are Unix nanoseconds, given by the caller."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []

    def add(self, deadline_ns: int, request_id: str) -> None:
        """Remember a request."""
        heapq.heappush(self._heap, (deadline_ns, request_id))

    def pop_expired(self, now_ns: int) -> list[str]:
        """Requests whose deadline has passed, each once."""
        expired = []
        while self._heap and self._heap[0][0] <= now_ns:
            expired.append(heapq.heappop(self._heap)[1])
        return expired
