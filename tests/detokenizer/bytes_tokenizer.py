"""A tokenizer whose ids are the 256 bytes, and EOS as id 256: any split of any text can be made."""

from tokenizers import AddedToken, Tokenizer, decoders, models

from services.detokenizer.core.vocabulary import Vocabulary, byte_of_character

EOS = 256


def bytes_tokenizer() -> Tokenizer:
    """Byte-level BPE without merges."""
    tokenizer = Tokenizer(models.BPE(vocab=byte_of_character(), merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    return tokenizer


def bytes_vocabulary() -> Vocabulary:
    """Its vocabulary."""
    return Vocabulary(bytes_tokenizer())
