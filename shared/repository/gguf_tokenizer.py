"""A tokenizer.json from the tokenizer that a GGUF file carries in its metadata."""

from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from shared.repository.errors import BadModelFile, UnsupportedModel
from shared.repository.gguf_file import GgufFile
from shared.repository.pre_tokenizers import PRE_TOKENIZATIONS

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
_MAX_TOKEN_CHARS = 4096
_SPACE = "\u2581"
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>")
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """The tokenizer of a GGUF file. eos_token_ids: every id that ends a turn, the EOS token's first."""

    tokenizer: Tokenizer
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    chat_template: str | None


def read_tokenizer(gguf: GgufFile) -> GgufTokenizer:
    """Build the tokenizer that the metadata describes: byte-level BPE ("gpt2") or SentencePiece BPE ("llama").

    Raises BadModelFile for metadata that makes no tokenizer, UnsupportedModel for another model or cutting rule.
    """
    vocabulary = _Vocabulary.read(gguf)
    kind = gguf.metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer, adds_bos = _byte_level(vocabulary)
    elif kind == "llama":
        tokenizer, adds_bos = _sentencepiece(vocabulary), True
    else:
        raise UnsupportedModel(gguf.path, f"tokenizer model {str(kind)[:40]} is not supported; known: gpt2, llama")
    tokenizer.add_tokens(vocabulary.added_tokens())
    bos_token_id = vocabulary.token_id("bos_token_id")
    if _flag(gguf, "tokenizer.ggml.add_bos_token", adds_bos) and bos_token_id is not None:
        bos = vocabulary.tokens[bos_token_id]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", f"{bos}:1", "$B:1"], special_tokens=[(bos, bos_token_id)]
        )
    template = gguf.metadata.get("tokenizer.chat_template")
    if template is not None and not isinstance(template, str):
        raise BadModelFile(gguf.path, "tokenizer.chat_template is not a string")
    return GgufTokenizer(tokenizer, bos_token_id, vocabulary.eos_token_ids(template or ""), template)


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """tokens and types by token id. Types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte."""

    gguf: GgufFile
    tokens: list[str]
    types: list[int]

    @classmethod
    def read(cls, gguf: GgufFile) -> "_Vocabulary":
        tokens = _string_list(gguf, "tokenizer.ggml.tokens")
        if not tokens:
            raise BadModelFile(gguf.path, "tokenizer.ggml.tokens is missing")
        if max(map(len, tokens)) > _MAX_TOKEN_CHARS:
            raise BadModelFile(gguf.path, f"tokenizer.ggml.tokens holds a token of over {_MAX_TOKEN_CHARS} characters")
        types = gguf.metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
        if not isinstance(types, list) or len(types) != len(tokens):
            raise BadModelFile(gguf.path, "tokenizer.ggml.token_type and tokenizer.ggml.tokens differ in length")
        used = [token for token, kind in zip(tokens, types, strict=True) if kind != _UNUSED]
        if len(set(used)) != len(used):
            raise BadModelFile(gguf.path, "tokenizer.ggml.tokens holds a token twice")
        return cls(gguf, tokens, types)

    def ids(self) -> dict[str, int]:
        """Token -> id, without unused tokens: no text encodes to those."""
        pairs = zip(self.tokens, self.types, strict=True)
        return {token: index for index, (token, kind) in enumerate(pairs) if kind != _UNUSED}

    def added_tokens(self) -> list[AddedToken]:
        """Tokens that are matched in the text before any cutting: control tokens (special) and user-defined ones."""
        return [
            AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
            for token, kind in zip(self.tokens, self.types, strict=True)
            if token and kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]

    def token_id(self, name: str) -> int | None:
        """tokenizer.ggml.<name> as an id of this vocabulary; None when the file does not have it."""
        value = self.gguf.metadata.get(f"tokenizer.ggml.{name}")
        if value is None:
            return None
        if type(value) is not int or not 0 <= value < len(self.tokens):
            raise BadModelFile(self.gguf.path, f"tokenizer.ggml.{name} is no id of the vocabulary")
        return value

    def eos_token_ids(self, template: str) -> tuple[int, ...]:
        """The ids that the metadata names, then the end-of-turn tokens that the chat template writes."""
        named = [self.token_id(key) for key in _EOS_KEYS]
        ids = self.ids()
        written = [ids[token] for token in _END_OF_TURN if token in ids and token in template]
        return tuple(dict.fromkeys(value for value in [*named, *written] if value is not None))


def _byte_level(vocabulary: _Vocabulary) -> tuple[Tokenizer, bool]:
    """(tokenizer, whether BOS is added by default) for byte-level BPE."""
    gguf = vocabulary.gguf
    name = gguf.metadata.get("tokenizer.ggml.pre", "default")
    rules = PRE_TOKENIZATIONS.get(name) if isinstance(name, str) else None
    if rules is None:
        known = ", ".join(sorted(PRE_TOKENIZATIONS))
        raise UnsupportedModel(gguf.path, f"tokenizer.ggml.pre {str(name)[:40]} is not supported; known: {known}")
    merges: list[tuple[str, str]] = []
    for merge in _string_list(gguf, "tokenizer.ggml.merges"):
        left, space, right = merge.partition(" ")
        if not (left and space and right):
            raise BadModelFile(gguf.path, f"tokenizer.ggml.merges holds {merge[:40]!r}, not two tokens")
        merges.append((left, right))
    tokenizer = _tokenizer(gguf, vocab=vocabulary.ids(), merges=merges, ignore_merges=rules.ignore_merges)
    tokenizer.pre_tokenizer = rules.pre_tokenizer()
    normalizer = rules.normalizer()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False, trim_offsets=False)
    return tokenizer, rules.adds_bos


def _sentencepiece(vocabulary: _Vocabulary) -> Tokenizer:
    """SentencePiece BPE: merges follow from the scores, unknown characters become byte tokens."""
    gguf = vocabulary.gguf
    scores = gguf.metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(vocabulary.tokens):
        raise BadModelFile(gguf.path, "tokenizer.ggml.scores and tokenizer.ggml.tokens differ in length")
    if any(type(score) not in (int, float) for score in scores):
        raise BadModelFile(gguf.path, "tokenizer.ggml.scores is not a list of numbers")
    ids = vocabulary.ids()
    unknown = vocabulary.token_id("unknown_token_id")
    tokenizer = _tokenizer(
        gguf,
        vocab=ids,
        merges=_merges_by_score(vocabulary, ids, scores),
        unk_token=None if unknown is None else vocabulary.tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    with_prefix = _flag(gguf, "tokenizer.ggml.add_space_prefix", True)
    prefix: list[normalizers.Normalizer] = [normalizers.Prepend(_SPACE)] if with_prefix else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    steps: list[decoders.Decoder] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if with_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def _merges_by_score(vocabulary: _Vocabulary, ids: dict[str, int], scores: list[Any]) -> list[tuple[str, str]]:
    """Every way to make a normal token of two, the best-scored token first; ties keep the vocabulary's order."""
    normal = [index for index, kind in enumerate(vocabulary.types) if kind in (1, _USER_DEFINED)]
    merges: list[tuple[str, str]] = []
    for index in sorted(normal, key=lambda index: -scores[index]):
        token = vocabulary.tokens[index]
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [(left, right) for left, right in splits if left in ids and right in ids]
        merges.extend(sorted(known, key=lambda pair: (ids[pair[0]], ids[pair[1]])))
    return merges


def _tokenizer(gguf: GgufFile, **options: Any) -> Tokenizer:
    try:
        return Tokenizer(models.BPE(**options))
    except Exception as error:  # the library raises plain Exception for merges that its vocabulary lacks
        raise BadModelFile(gguf.path, f"the metadata holds no tokenizer ({error})") from error


def _string_list(gguf: GgufFile, key: str) -> list[str]:
    value = gguf.metadata.get(key, [])
    if not isinstance(value, list) or any(type(item) is not str for item in value):
        raise BadModelFile(gguf.path, f"{key} is not a list of strings")
    return value


def _flag(gguf: GgufFile, key: str, default: bool) -> bool:
    value = gguf.metadata.get(key, default)
    if type(value) is not bool:
        raise BadModelFile(gguf.path, f"{key} is not a boolean")
    return value
