"""Chooses the code of a response that is tested.

It uses Python's own parser, which hostile text can slow down or crash. Therefore it runs in a confined
process, like the code itself.
"""

import ast
import re
import textwrap
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from itertools import islice

from trinity_db.processors.children.prelude import prelude

MAX_BLOCKS = 100  # the last ones of a response
MAX_ENDS = 20  # fences that are tried as the end of a block

_FENCE = re.compile(r"`{3,}+|~{3,}+")
_FENCE_LINE = re.compile(r"^[ \t]*+(?P<fence>`{3,}+|~{3,}+)(?P<info>.*)$", re.MULTILINE)
_PYTHON = re.compile(r"i?py(?:thon)?[0-9.]*+(?![\w+#-])")
_MARKDOWN = {"markdown", "md"}
_READING = {"input", "open", "stdin", "fileinput"}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_SCOPES = (*_DEFINITIONS, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PARSE_ERRORS = (SyntaxError, ValueError, RecursionError, MemoryError)


class Block:
    """A part of a response that may be code. Code that cannot be parsed defines nothing and is no program."""

    def __init__(self, code: str) -> None:
        self.code = code

    @cached_property
    def tree(self) -> ast.Module | None:
        try:
            return ast.parse(self.code)
        except _PARSE_ERRORS:
            return None

    @cached_property
    def statements(self) -> Sequence[ast.stmt]:
        return [] if self.tree is None else self.tree.body

    @cached_property
    def imported(self) -> set[str]:
        """Names that imports bind at the top level."""
        aliases = (
            alias for node in _in_scope(self.statements) if isinstance(node, _IMPORTS) for alias in node.names
        )
        return {alias.asname or alias.name.partition(".")[0] for alias in aliases}

    @cached_property
    def defined(self) -> set[str]:
        """Names that are otherwise bound at the top level, and the methods of a class Solution."""
        names = set()
        for node in _in_scope(self.statements):
            if isinstance(node, _DEFINITIONS):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            if isinstance(node, ast.ClassDef) and node.name == "Solution":
                names |= {method.name for method in node.body if isinstance(method, ast.FunctionDef)}
        return names

    @cached_property
    def undefined(self) -> set[str]:
        """Names that are read but bound nowhere in the block."""
        read: set[str] = set()
        bound = {"__file__"}
        for node in ast.walk(ast.Module([*self.statements], [])):
            if isinstance(node, ast.Name):
                (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
            elif (
                isinstance(node, (*_DEFINITIONS, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name
            ):
                bound.add(node.name)
            elif isinstance(node, ast.arg):
                bound.add(node.arg)
            elif isinstance(node, _IMPORTS):
                bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        return read - bound - prelude().keys()

    @cached_property
    def runs(self) -> bool:
        """Whether it does something besides definitions, imports and assignments."""
        passive = (*_DEFINITIONS, *_IMPORTS, ast.Assign, ast.AnnAssign)
        return any(not isinstance(node, passive) and not _is_constant(node) for node in self.statements)

    @cached_property
    def reads(self) -> bool:
        """Whether it may read standard input."""
        nodes = ast.walk(ast.Module([*self.statements], []))
        names = {getattr(node, "id", None) or getattr(node, "attr", None) for node in nodes}
        return bool(names & _READING)


def code_of(response: str, names: Collection[str], has_input: bool, prompt: str = "") -> list[str]:
    """Return the parts of a response's code, to be run one after another.

    Args:
        response: Response without its thoughts.
        names: Functions and classes of which the code must define one; empty for a program.
        has_input: Whether the program receives input.
        prompt: Prompt of the task. If it is code that begins one of the functions, it is the first part.
    """
    answer = response.replace("\r\n", "\n")
    blocks = [*_blocks(answer)]
    kinds = [
        [Block(code) for is_marked, code in blocks if is_marked is kind][-MAX_BLOCKS:]
        for kind in (True, False)
    ]
    if not blocks:
        kinds = [[Block(answer)]]
    beginning = Block(prompt) if names else Block("")
    has_beginning = bool(beginning.defined & {*names}) and not beginning.runs
    parts = [prompt] if has_beginning else []
    for kind in kinds:
        if chosen := _last_definition(kind, {*names}) if names else _last_program(kind, has_input):
            return parts + _with_needed(chosen, kind, {*names})
    last = next((kind[-1] for kind in kinds if kind), Block(answer))
    if (
        names
        and prompt
        and (whole := _continued(prompt, [answer, textwrap.indent(last.code, "    ")], names))
    ):
        return [whole]
    return _with_needed(last, next((kind for kind in kinds if kind), []), set())


def _continued(prompt: str, bodies: Sequence[str], names: Collection[str]) -> str | None:
    """Return the prompt with the first of the bodies that completes one of the functions."""
    for body in bodies:
        whole = Block(f"{prompt}\n{body}")
        if whole.defined & {*names} and body.strip():
            return whole.code
    return None


def _last_definition(blocks: Sequence[Block], names: set[str]) -> Block | None:
    """Return the last block that defines one of the names, or else imports it."""
    defining = [block for block in blocks if block.defined & names]
    importing = [block for block in blocks if block.imported & names]
    return next((some[-1] for some in (defining, importing) if some), None)


def _last_program(blocks: Sequence[Block], has_input: bool) -> Block | None:
    """Return the last block that runs as a program: if possible, one that reads its input and is complete."""
    programs = [block for block in blocks if block.runs]
    readers = [block for block in programs if block.reads or not has_input]
    for some in (readers, programs):
        if complete := [block for block in some if not block.undefined]:
            return complete[-1]
        if some:
            return some[-1]
    return None


def _with_needed(chosen: Block, blocks: Sequence[Block], names: set[str]) -> list[str]:
    """Return the code of a block behind that of the blocks that define what is missing in it."""
    taken, missing = [chosen], chosen.undefined | (names - chosen.defined - chosen.imported)
    while others := [
        block for block in blocks if block not in taken and (block.defined | block.imported) & missing
    ]:
        taken.append(others[-1])
        bound = {name for block in taken for name in block.defined | block.imported}
        missing = (missing | others[-1].undefined) - bound
    return [*(block.code for block in blocks if block in taken[1:]), chosen.code]


def _in_scope(statements: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of the top level, without those inside functions and classes."""
    nodes: list[ast.AST] = [*statements]
    while nodes:
        yield (node := nodes.pop())
        if not isinstance(node, _SCOPES):
            nodes.extend(ast.iter_child_nodes(node))


def _is_constant(node: ast.stmt) -> bool:
    """Whether it is a docstring or another value without effect."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _blocks(text: str) -> Iterator[tuple[bool, str]]:
    """Yield whether each block is marked as Python, and its code; no blocks of other languages.

    A fence opens a block if only its information follows on its line, also behind a sentence.
    """
    position = 0
    while opening := _FENCE.search(text, position):
        within = _FENCE.search(text, opening.end())
        if within and text.find("\n", opening.end(), within.start()) < 0:  # code within a line
            position = within.end()
            continue
        line_end = text.find("\n", opening.end())
        line_end = len(text) if line_end < 0 else line_end
        language = text[opening.end() : line_end].strip(" \t\r{.").lower()
        before = text[text.rfind("\n", 0, opening.start()) + 1 : opening.start()]
        if language in _MARKDOWN or (opening[0][0] == "~" and before.strip()):
            position = line_end  # the blocks within Markdown are blocks of the response
            continue
        is_marked = _PYTHON.match(language) is not None
        if is_marked or not language:
            code, position = _code(text, line_end + 1, opening[0], before if before.isspace() else "")
            yield is_marked, code
        else:
            closing = next(_ends(text, line_end, opening[0], is_closing=True), None)
            position = closing.end() if closing else len(text)


def _code(text: str, start: int, fence: str, indent: str) -> tuple[str, int]:
    """Return the code of a block, and the position behind it.

    It ends at the first fence before which it can be parsed, which is not a fence in its docstring; without
    such a fence, at the first closing fence.
    """
    for end in islice(_ends(text, start, fence), MAX_ENDS):
        if Block(code := _without_indent(text[start : end.start()], indent)).tree is not None:
            return code, end.start() if end["info"].strip() else end.end()
    within = text.find(fence, start)
    if within >= 0 and Block(code := _without_indent(text[start:within], indent)).tree is not None:
        return code, within + len(fence)
    closing = next(_ends(text, start, fence, is_closing=True), None)
    stop, behind = (closing.start(), closing.end()) if closing else (len(text), len(text))
    return _without_indent(text[start:stop], indent), behind


def _ends(text: str, start: int, fence: str, is_closing: bool = False) -> Iterator[re.Match[str]]:
    """Yield the lines that begin with a fence of this kind, at least as long; or only those without more."""
    for line in _FENCE_LINE.finditer(text, start):
        if line["fence"].startswith(fence) and not (is_closing and line["info"].strip()):
            yield line


def _without_indent(code: str, indent: str) -> str:
    lines = (line.removeprefix(indent) for line in code.split("\n")) if indent else [code]
    return textwrap.dedent("\n".join(lines))
