"""tokenizer.json from GGUF metadata encodes and decodes as the original tokenizer does."""

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, pre_tokenizers

from shared.repository.errors import BadModelFile, UnsupportedModel
from shared.repository.gguf_file import GgufFile
from shared.repository.gguf_tokenizer import read_tokenizer
from shared.repository.pre_tokenizers import PRE_TOKENIZATIONS
from tests.tiny_models import make_tiny_tokenizer

TEXTS = [
    "The capital of France is Paris.",
    "Die Straße heißt 12345-mal „Grüße“; it's they'll DON'T",
    "Чай горячий, снег холодный ½ ٣٤ Ⅳ",
    "数を数える。 안녕하세요 세계! שלום",
    "  two  spaces\t\ttabs\r\n\r\n newlines \n",
    "👩‍👩‍👧 e\u0301 <|im_start|>user",
    "",
]


def metadata(**changes: Any) -> GgufFile:
    """Byte-level BPE metadata of the tiny tokenizer; None removes a key."""
    tokenizer = make_tiny_tokenizer()
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    found: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": merges_of(tokenizer),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    for key, value in changes.items():
        found["tokenizer." + ("" if key == "chat_template" else "ggml.") + key] = value
    return GgufFile(Path("tiny.gguf"), {key: value for key, value in found.items() if value is not None}, {})


def merges_of(tokenizer: Tokenizer) -> list[str]:
    import json

    return [" ".join(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


@pytest.mark.parametrize("text", TEXTS)
def test_smollm_cuts_like_its_original(text: str) -> None:
    """SmolLM2's own tokenizer.json: digits one by one, then the byte-level pre-tokenizer with GPT-2's expression."""
    original = make_tiny_tokenizer()
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    original.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    ours = read_tokenizer(metadata()).tokenizer
    assert ours.encode(text).ids == original.encode(text).ids
    assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("rules", PRE_TOKENIZATIONS)
def test_every_cut_loses_nothing(rules: str) -> None:
    ours = read_tokenizer(metadata(pre=rules, add_bos_token=False)).tokenizer
    for text in TEXTS:
        whole = ours.normalizer.normalize_str(text) if ours.normalizer else text
        assert ours.decode(ours.encode(text).ids, skip_special_tokens=False) == whole


@pytest.mark.parametrize(
    ("rules", "text", "pieces"),
    [
        ("gpt-2", "I've 1234 x", ["I", "'ve", " 1234", " x"]),
        ("smollm", "I've 1234 x", ["I", "'ve", " ", "1", "2", "3", "4", " x"]),
        ("llama-bpe", "I'VE 1234 x\n\n y", ["I", "'VE", " ", "123", "4", " x", "\n\n", " y"]),
        ("qwen2", "I'VE 1234 x\n\n y", ["I", "'VE", " ", "1", "2", "3", "4", " x", "\n\n", " y"]),
        ("tekken", "helloWorld /path", ["hello", "World", " /", "path"]),
        ("default", "a.b 1234567", ["a", ".", "b", " ", "123", "456", "7"]),
    ],
)
def test_pieces(rules: str, text: str, pieces: list[str]) -> None:
    cut = PRE_TOKENIZATIONS[rules].pre_tokenizer().pre_tokenize_str(text)
    assert [text[begin:end] for _, (begin, end) in cut] == pieces


def test_control_tokens_are_special_and_user_defined_ones_are_not() -> None:
    types = [3, 4, 3] + [1] * (make_tiny_tokenizer().get_vocab_size() - 3)
    ours = read_tokenizer(metadata(token_type=types)).tokenizer
    assert ours.encode("<|im_start|><|im_end|>").ids == [1, 2]
    assert ours.decode([1, 2]) == "<|im_start|>"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"add_bos_token": True}, True),
        ({"add_bos_token": False}, False),
        ({}, False),
        ({"pre": "llama-bpe"}, True),
        ({"pre": "llama-bpe", "add_bos_token": False}, False),
        ({"add_bos_token": True, "bos_token_id": None}, False),
    ],
)
def test_bos_is_added_once_or_not_at_all(changes: dict[str, Any], expected: bool) -> None:
    ours = read_tokenizer(metadata(**changes)).tokenizer
    assert ours.encode("Paris").ids.count(1) == int(expected)
    assert ours.encode("Paris", add_special_tokens=False).ids.count(1) == 0
    assert ours.encode("a", "b").ids.count(1) == 2 * int(expected)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (2,)),
        ({"eot_token_id": 1}, (2, 1)),
        ({"eos_token_id": 0, "chat_template": "{{ x }}<|im_end|>"}, (0, 2)),
        ({"eos_token_id": 0, "chat_template": "{{ x }}"}, (0,)),
        ({"eos_token_id": None}, ()),
    ],
)
def test_all_ends_of_a_turn_are_found(changes: dict[str, Any], expected: tuple[int, ...]) -> None:
    assert read_tokenizer(metadata(**changes)).eos_token_ids == expected


def sentencepiece(**changes: Any) -> GgufFile:
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "a",
        "b",
        "c",
        "▁a",
        "bc",
        "▁abc",
    ]
    types = [2, 3, 3, *[6] * 256, *[1] * 7]
    scores = [0.0] * 259 + [-10.0, -11.0, -12.0, -13.0, -1.0, -2.0, -3.0]
    found: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    found.update({"tokenizer.ggml." + key: value for key, value in changes.items()})
    return GgufFile(Path("tiny.gguf"), found, {})


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes() -> None:
    ours = read_tokenizer(sentencepiece()).tokenizer
    assert ours.encode("abc").tokens == ["<s>", "▁abc"]
    assert ours.encode("abc a", add_special_tokens=False).tokens == ["▁abc", "▁a"]
    assert ours.encode("é", add_special_tokens=False).tokens == ["▁", "<0xC3>", "<0xA9>"]
    for text in ("abc é 数 a", " leading", "two  spaces"):
        assert ours.decode(ours.encode(text).ids) == text


def test_sentencepiece_without_space_prefix() -> None:
    ours = read_tokenizer(sentencepiece(add_space_prefix=False)).tokenizer
    assert ours.encode("abc", add_special_tokens=False).tokens == ["a", "bc"]
    assert ours.decode(ours.encode(" a").ids) == " a"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (metadata(tokens=None), "tokens is missing"),
        (metadata(tokens=["a", 1]), "not a list of strings"),
        (metadata(tokens=["a", "a"], token_type=None), "token twice"),
        (metadata(token_type=[1]), "differ in length"),
        (metadata(merges=["ab"]), "not two tokens"),
        (metadata(merges=["quux zap"]), "no tokenizer"),
        (metadata(eos_token_id=10**6), "eos_token_id"),
        (metadata(bos_token_id=-1), "bos_token_id"),
        (metadata(add_bos_token=1), "not a boolean"),
        (metadata(chat_template=7), "chat_template"),
        (sentencepiece(scores=[1.0]), "scores"),
    ],
)
def test_metadata_that_makes_no_tokenizer_is_refused(file: GgufFile, reason: str) -> None:
    with pytest.raises(BadModelFile) as refused:
        read_tokenizer(file)
    assert reason in str(refused.value)
    assert str(file.path) in str(refused.value)


@pytest.mark.parametrize("changes", [{"pre": "unheard-of"}, {"model": "t5"}, {"pre": 3}])
def test_other_kinds_are_refused_with_the_known_ones(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match="known: "):
        read_tokenizer(metadata(**changes))
