"""A task is shown as its model reads it, with special tokens, stop tokens and warnings."""

from pathlib import Path
from typing import Any

import pytest

from trinity_db.config.shared import ModelConfig, ScratchConfig
from trinity_db.models.chat.prompts import PLAIN_PROMPT_WARNING
from trinity_db.run.first_task import FirstTask, lines_and_warning, render

QUESTION = {"prompt": "Why?"}


@pytest.fixture
def template(tmp_path: Path) -> Path:
    file = tmp_path / "chat.jinja"
    file.write_text("{% for one in messages %}{{ one.role }}: {{ one.content }}<|endoftext|>\n{% endfor %}")
    return file


def first(task: dict[str, Any], *, is_imported: bool = False, **prompts: Any) -> FirstTask:
    return FirstTask("first task", task, ModelConfig(scratch=ScratchConfig(), **prompts), None, is_imported)


def test_special_tokens_and_stop_tokens_are_visible(template: Path) -> None:
    lines, warning = lines_and_warning(first(QUESTION, chat_template=template, system_prompt="Be kind."))
    assert lines == [
        "first task as the model reads it (30 tokens):",
        "    system: Be kind.<|endoftext|>",
        "    user: Why?<|endoftext|>",
        "    ",
        "a response ends with <|endoftext|>",
    ]
    assert warning is None


def test_messages_are_shown_as_messages(template: Path) -> None:
    task = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    for is_imported in (False, True):
        shown = render(first(task, chat_template=template, is_imported=is_imported))
        assert shown.prompt == "user: a<|endoftext|>\nassistant: b<|endoftext|>\n"
        assert shown.warning is None


def test_a_plain_prompt_that_misses_the_template_is_warned_of(template: Path) -> None:
    plain = first(QUESTION, chat_template=template, prompt_template="Q: {prompt}")
    assert (render(plain).prompt, render(plain).warning) == ("Q: Why?", PLAIN_PROMPT_WARNING)
    written = first(QUESTION, chat_template=template, prompt_template="Q: {prompt}<|endoftext|>")
    assert render(written).warning is None, "the template is written out"
    base = first(QUESTION, prompt_template="Q: {prompt}")
    assert render(base).warning is None, "a base model has no template"


def test_the_plain_prompt_of_an_imported_row_stays_plain(template: Path) -> None:
    shown = render(first(QUESTION, is_imported=True, chat_template=template))
    assert (shown.prompt, shown.warning) == ("Why?", PLAIN_PROMPT_WARNING)


@pytest.mark.parametrize(
    ("context", "max_new_tokens", "warning"),
    [
        (14, 10, None),
        (13, 10, "context of 13 tokens leaves 9 for a response, fewer than explorer.max_new_tokens (10)"),
        (4, 10, "the prompt does not fit the model's context of 4 tokens"),
        (4, None, None),
    ],
)
def test_a_prompt_that_leaves_too_little_of_the_context_is_warned_of(
    context: int, max_new_tokens: int | None, warning: str | None
) -> None:
    model = ModelConfig(scratch=ScratchConfig(context=context))
    shown = render(FirstTask("first task", QUESTION, model, None, max_new_tokens=max_new_tokens))
    assert shown.num_tokens == 4
    assert (shown.warning is None) if warning is None else (warning in str(shown.warning))


def test_a_very_long_prompt_is_cut_in_its_middle() -> None:
    shown = render(first({"prompt": "a" * 5000 + "\n" + "z" * 5000}))
    (line,) = shown.lines("first task")[1:-1]
    assert line == f"    {'a' * 750} [... 8,501 characters ...] {'z' * 750}"
    assert len(shown.line("first task")) < 500


def test_control_characters_of_a_prompt_are_escaped() -> None:
    assert render(first({"prompt": "\x1b[2J"})).lines("first task")[1] == "    \\x1b[2J"


@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        (FirstTask("first task", QUESTION, ModelConfig(path=Path("gone")), None), "the tokenizer is not on"),
        (first({"level": 3}), "it has neither a prompt nor messages"),
        (
            FirstTask("first task", QUESTION, ModelConfig(scratch=ScratchConfig(alphabet="a")), None),
            "cannot encode",
        ),
    ],
)
def test_one_line_names_why_a_task_is_not_shown(shown: FirstTask, reason: str) -> None:
    (line,), warning = lines_and_warning(shown)
    assert line.startswith("first task is not shown: ")
    assert reason in line
    assert warning is None
