"""How text is cut before byte-level BPE, by the name in GGUF's `tokenizer.ggml.pre`.

Each rule set is a sequence of patterns applied in turn: every match becomes a piece of its own and so does the text
between matches. A model must be served with the cut that it was trained with.
"""

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = _CONTRACTIONS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_ANY_CASE = rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}%s"
_LINES = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"


@dataclass(frozen=True, slots=True)
class PreTokenization:
    """patterns: regular expressions in the order of application. ignore_merges: a piece that is a token as a whole is
    taken as that token. nfc: text is composed (Unicode NFC) first. adds_bos: the default when the file does not say."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    nfc: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The patterns, then the byte-to-character mapping of byte-level BPE."""
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns
        ]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(steps)

    def normalizer(self) -> normalizers.Normalizer | None:
        """NFC or nothing."""
        return normalizers.NFC() if self.nfc else None


_DIGIT_BY_DIGIT = PreTokenization((r"\p{N}", _GPT2))
_QWEN2 = PreTokenization((_ANY_CASE % "" + _LINES,), nfc=True)
_LLAMA3 = PreTokenization((_ANY_CASE % "{1,3}" + _LINES,), ignore_merges=True, adds_bos=True)
_TEKKEN = PreTokenization(
    (
        rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    ignore_merges=True,
    adds_bos=True,
)

PRE_TOKENIZATIONS: dict[str, PreTokenization] = {
    "default": PreTokenization((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": PreTokenization((_GPT2,)),
    "smollm": _DIGIT_BY_DIGIT,
    "starcoder": _DIGIT_BY_DIGIT,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "tekken": _TEKKEN,
}
