"""What is due when: a heap of times whose entries can be taken back."""

import heapq

MIN_COMPACT = 64


class Deadlines:
    """At most one time per request. Times are nanoseconds, given by the caller.

    Taking one back only marks its place in the heap as dead; the heap is built anew once more than half of it is dead,
    so it never holds more than twice what is due (and MIN_COMPACT), and each call costs O(log n) on average.
    """

    def __init__(self) -> None:
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._due)

    @property
    def heap_size(self) -> int:
        """Entries in memory, dead ones among them."""
        return len(self._heap)

    def set(self, request_id: str, due_ns: int) -> None:
        """The request is due then, and at no other time."""
        if self._due.get(request_id) == due_ns:
            return
        self._due[request_id] = due_ns
        heapq.heappush(self._heap, (due_ns, request_id))
        self._compact()

    def discard(self, request_id: str) -> None:
        """The request is not due any more, if it was."""
        if self._due.pop(request_id, None) is not None:
            self._compact()

    def pop_due(self, now_ns: int) -> list[str]:
        """Requests that are due, each once, the earliest first."""
        found = []
        while self._heap and self._heap[0][0] <= now_ns:
            due_ns, request_id = heapq.heappop(self._heap)
            if self._due.get(request_id) == due_ns:
                del self._due[request_id]
                found.append(request_id)
        return found

    def _compact(self) -> None:
        if len(self._heap) > max(MIN_COMPACT, 2 * len(self._due)):
            self._heap = [(due_ns, request_id) for request_id, due_ns in self._due.items()]
            heapq.heapify(self._heap)
