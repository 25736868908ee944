"""Limits of this process that its children inherit."""

import resource

ENOUGH_FILES = 1 << 20


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one: each stream is a socket. The limit that holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft  # some systems cap it lower than they say; what we have must do
    return wanted
