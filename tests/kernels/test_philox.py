"""The random numbers: known answers of Philox4x32-10, and the vectorised path against plain integers."""

import numpy as np
import pytest

from kernels.sampling import philox, reference

# Random123's known-answer vectors for philox4x32-10: counter, key, words.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    assert reference.philox4x32(counter, key) == words


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 - 1, -(2**63), 0x299F31D0A4093822])
@pytest.mark.parametrize("position", [0, 1, 2**31 - 1])
def test_vectorised_words_equal_plain_ones(seed: int, position: int) -> None:
    blocks = np.array([0, 1, 5, 49151 // 4, 2**30], dtype=np.uint64)
    expected = [
        reference.philox4x32((int(block), position, 0, 0), (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
        for block in blocks
    ]
    np.testing.assert_array_equal(philox.words(seed, position, blocks), np.array(expected, dtype=np.uint64))


@pytest.mark.parametrize("tokens", [[0], [3, 4], [1, 2, 3, 7, 8, 100, 101, 40000], list(range(50))], ids=str)
def test_vectorised_noise_equals_plain_noise(tokens: list[int]) -> None:
    noise = philox.gumbel(1234, 7, np.array(tokens, dtype=np.int64))
    expected = [reference.gumbel(1234, 7, token) for token in tokens]
    np.testing.assert_allclose(noise, np.array(expected), rtol=1e-6)


def test_noise_has_the_gumbel_distribution() -> None:
    noise = philox.gumbel(5, 0, np.arange(200_000, dtype=np.int64)).astype(np.float64)
    assert np.isfinite(noise).all()
    assert noise.mean() == pytest.approx(0.5772, abs=0.01)
    assert noise.var() == pytest.approx(np.pi**2 / 6, rel=0.02)


def test_noise_is_finite_at_both_ends_of_the_uniform_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    extremes = np.array([[0, 1, 2**32 - 1, 2**32 - 2]], dtype=np.uint64)
    monkeypatch.setattr(philox, "words", lambda seed, position, blocks: extremes)
    noise = philox.gumbel(0, 0, np.arange(4, dtype=np.int64))
    assert np.isfinite(noise).all()
    assert noise[0] > 22
    assert noise[2] < -2.8
