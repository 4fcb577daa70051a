"""Public forms of chat templates, written anew and short, and a tokenizer that has one of them.

Each file below `tests/unit/chat_templates` writes headers, ends of turns, tools, calls and thoughts as the
template of that family does, and less of the words around them. TRINITY_TEST_TEMPLATES names a folder of
further templates: `make test-conversations` fetches those of models that llama.cpp has.
"""

import os
import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TEMPLATES = Path(__file__).parents[1] / "unit" / "chat_templates"
FOLDERS = [TEMPLATES, *map(Path, filter(None, [os.environ.get("TRINITY_TEST_TEMPLATES")]))]
FILES = {file.stem: file for folder in FOLDERS for file in sorted(folder.glob("*.jinja"))}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
]
# As in Llama 3's tokenizer: line breaks go together, and apart from the words behind them.
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
MERGES = [("Ċ", "Ċ"), ("Ġ", "i"), ("i", "s"), ("Ġi", "s"), ("I", "t")]
MARK = re.compile(
    r"<[|｜][^<>{}' ]*>|<[^<>{}' ]*[|｜]>|<(?:start|begin|beginning|end)_of_[a-z]+>|\[/?[A-Z_]{4,}\]"
    r"|<seed:[be]os>|<SPECIAL_\d+>|\]~!?b\[|\[e~\[|</?(?:system|user|assistant)>|<sep>"
)


def read(name: str) -> str:
    return FILES[name].read_text(encoding="utf-8")


def tokenizer(template: str, eos: str = "</s>") -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with a few merges. The marks of the template are special tokens of no use."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate([*letters, *map("".join, MERGES)])}
    plain = Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    plain.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    plain.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token=eos)
    made.add_tokens([AddedToken(mark, special=True) for mark in dict.fromkeys(MARK.findall(template))])
    made.chat_template = template
    return made
