"""Splits texts in any script into words and runs of words, for comparisons of texts."""

import re
import unicodedata
from collections.abc import Sequence

PIECE = 512  # characters
# A piece ends before a character that never combines with what precedes it, if one is near.
_PIECE = re.compile(
    rf".{{1,{PIECE}}}(?=[\x00-\x7f\s\u3400-\u9fff\uac00-\ud7a3]|\Z)|.{{1,{PIECE}}}", re.DOTALL
)
# Scripts without spaces between words, from Thai to Burmese, Khmer, Japanese, Chinese: each letter is a word.
_UNSPACED = "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def words(text: str) -> list[str]:
    """Return the words in order, in lower case, without punctuation and white space."""
    return _WORD.findall(normalized(text).casefold())


def normalized(text: str) -> str:
    """Return a text in the normal form NFKC, in linear time.

    Python sorts combining characters in time quadratic in the length of their sequence, so a long text is
    normalized in pieces. Only a sequence without white space, ASCII or Chinese characters can be cut in the
    middle; the characters at the cut then stay apart.
    """
    if len(text) <= PIECE:
        return unicodedata.normalize("NFKC", text)
    return "".join(unicodedata.normalize("NFKC", piece) for piece in _PIECE.findall(text))


def runs(words: Sequence[str], length: int) -> list[str]:
    """Return all runs of `length` words, in order. Fewer words form one run; no words form none."""
    if not words:
        return []
    return [" ".join(words[start : start + length]) for start in range(max(len(words) - length, 0) + 1)]
