"""What tests of the benchmarks share."""

import pytest

from bench.prompts import PromptMaker
from tests.tiny_models import make_tiny_tokenizer


@pytest.fixture(scope="session")
def prompts() -> PromptMaker:
    """Over a tokenizer that splits most words: the hardest case for prompts of an exact length."""
    return PromptMaker(make_tiny_tokenizer())
