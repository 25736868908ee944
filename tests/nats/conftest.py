"""Fixtures of the tests of a secured bus."""

from collections.abc import Iterator

import pytest

from tests.nats.secured import SecuredServer


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    """One secured server for the tests of a module."""
    with SecuredServer(tmp_path_factory.mktemp("secured")) as server:
        yield server
