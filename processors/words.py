"""Words of a text, in any script, and the runs of words by which texts are compared."""

import re
import unicodedata
from collections.abc import Sequence

# Scripts without spaces between words, from Thai to Burmese, Khmer, Japanese, Chinese: each letter is a word.
_UNSPACED = "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")


def words(text: str) -> list[str]:
    """The words in their order, in lower case; signs and white space are no part of them."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def runs(of: Sequence[str], length: int) -> list[str]:
    """All runs of so many words, in their order. Fewer words are one run; no words are none."""
    if not of:
        return []
    return [" ".join(of[start : start + length]) for start in range(max(len(of) - length, 0) + 1)]
