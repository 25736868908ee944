"""The permissions as a table for people: `python -m deploy.nats.table` prints what docs/security.md shows."""

import sys

from deploy.nats.permissions import ROLES, permissions
from shared import subjects

SHARD = "<shard>"
OWN_ROLE = "<own role>"
SERVICE_API = subjects.ALL_MICRO.removesuffix(">")


def permission_table() -> str:
    """Markdown: a row per subject, a column per role; pub, sub, or queue for hearing as a member of its group only."""
    cells: dict[str, dict[str, list[str]]] = {}

    def note(subject: str, role: str, what: str) -> None:
        subject = subject.replace(f".{role}", f".{OWN_ROLE}") if subject.startswith(SERVICE_API) else subject
        cells.setdefault(subject, {}).setdefault(role, []).append(what)

    for role in ROLES:
        allowed = permissions(role, [SHARD])
        for subject in allowed.publish:
            note(subject, role, "pub")
        for subject in allowed.subscribe:
            note(subject, role, "sub")
        for subject, _ in allowed.queues:
            note(subject, role, "queue")
    lines = [f"| subject | {' | '.join(ROLES)} |", "|---" * (len(ROLES) + 1) + "|"]
    for subject in sorted(cells, key=_order):
        row = (" ".join(cells[subject].get(role, [])) for role in ROLES)
        lines.append(f"| `{subject}` | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _order(subject: str) -> tuple[bool, bool, str]:
    """Our own subjects first, then inboxes, then the server's."""
    return subject.startswith("$"), not subject.startswith(subjects.PREFIX), subject


if __name__ == "__main__":
    sys.stdout.write(permission_table())
