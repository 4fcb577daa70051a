"""The page of an experience: conversation, tokens, history, and the policy version that includes it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from nicegui import ui

from trinity_db.errors import TrinityError
from trinity_db.insight import show
from trinity_db.insight.words import moment
from trinity_db.models import load_tokenizer
from trinity_db.page import conversation, layout, questions, texts
from trinity_db.page.elements import Cell, Column, Fact, Facts, Rows, Tokens, element
from trinity_db.page.group import judged
from trinity_db.page.reader import Reader
from trinity_db.page.rights import visitor
from trinity_db.postgres.connection import Database

TOKENS = 4_000  # shown at a time; more make a browser slow
STRETCH = 4_000  # characters shown of a masked stretch, split between its beginning and its end
HISTORY: Mapping[str, Mapping[str, str]] = {
    "sequences": {"step": "number", "experience_id": "number", "state": "", "left_out": "", "calls": "number",
                  "models": "long", "paths": "long", "num_trained": "number", "reward": "number"},
    "rewards": {"created_at": "", "source": "", "name": "", "value": "number", "weight": "number",
                "created_by": "", "latest": "", "detail": "long"},
    "batches": {"step": "number", "state": "", "sampler": "", "policy_version": "number", "reward": "number",
                "advantage": "number", "staleness": "number", "weight": "number", "probability": "number",
                "included_version": "number"},
    "preferences": {"id": "number", "chosen_id": "number", "rejected_id": "number", "state": "", "source": "",
                    "margin": "number", "use_count": "number"},
    "drops": {"created_at": "", "stage": "", "step": "", "reason": "", "detail": "long"},
    "processing": {"created_at": "", "processor": "", "processor_version": "number", "attempt": "number",
                   "outcome": "", "step": "", "error": "long"},
    "parks": {"ticket": "number", "parked_at": "", "answered_at": "", "answered_by": "", "answer": "long"},
}  # fmt: skip
"""Tables about an experience, with the columns that are shown and their kind."""
MISSING = {
    "rewards": "No reward yet. The score processor, trinity-db reward or trinity-db label gives one.",
    "batches": "No batch has used it yet.",
}
"""Texts shown for tables without rows; other empty tables are left out."""


def register(reader: Reader) -> None:
    """Add the page."""

    @ui.page("/experience/{experience_id}", response_timeout=layout.RESPONSE_SECONDS)
    async def experience_page(experience_id: str, start: str = "0") -> None:
        with layout.frame(f"Experience {experience_id}"):
            number, first = layout.identifier(experience_id), layout.identifier(start)
            if number is None or first is None:
                element("p", "Experience ids and token positions are whole numbers.", "notice", role="alert")
                return
            build = partial(_show, reader, first)
            await layout.once(reader, partial(_read, experience_id=number), build).look()


def _read(database: Database, experience_id: int) -> dict[str, Any]:
    return {
        **show.experience(database, experience_id),
        "steps": questions.steps(database, experience_id),
    }


def _show(reader: Reader, first: int, row: dict[str, Any]) -> None:
    Facts().show(_facts(row))
    _steps(row)
    element("p", lineage(row["batches"]), "explained").style("margin-top: 0.9rem")
    element("a", "Similar rows", "button", href=layout.link("similar", to=row["id"]))
    layout.heading("Conversation")
    conversation.show(turns(row))
    if row["environment"] is not None:
        layout.heading("State of the environment")
        with element("div", "", "card"):
            texts.show(row["environment"])
    if row["output"] is not None:
        layout.heading("Output of the program")
        element("pre", row["output"], "text")
    layout.heading("Tokens")
    tokens = element("div")
    with tokens:
        element("p", "Loading the tokens; the first time, the tokenizer takes a few seconds.", "explained")
    for part in HISTORY:
        _history(part, row[part])
    layout.later(partial(_fill, reader, row, first, tokens))


def _facts(row: Mapping[str, Any]) -> list[Fact]:
    group = row["group_id"]
    same = layout.link("experiences", run=row["run"], task=row["task"])
    stale = row["staleness_now"]
    lengths = [row["prompt_length"], row["response_length"]]
    return [
        Fact("run", row["run"], layout.link("run", row["run"])),
        Fact("state", row["state"] + (", held out" if row["held_out"] else "")),
        Fact("reward", "none yet" if row["reward"] is None else f"{row['reward']:.4g}"),
        Fact(
            "group",
            "" if group is None else str(group),
            None if group is None else layout.link("group", group),
        ),
        Fact("policy versions", layout.versions(row["version_min"], row["version_max"])),
        Fact("model", row["model"] or ""),
        Fact("staleness now", "" if stale is None else layout.count(stale, "version", "versions")),
        Fact(
            "length",
            "" if None in lengths else f"{lengths[0]:,} prompt tokens, {lengths[1]:,} response tokens",
        ),
        Fact("used by", layout.count(row["use_count"], "committed batch", "committed batches")),
        Fact("ended by", row["finish_reason"] or ""),
        Fact("task", row["task"] or "", same if row["task"] else None),
        Fact("taskset", row["taskset"] or ""),
        Fact(
            "the task over versions",
            "then and now" if row["task"] else "",
            layout.link("task", row["task_id"], run=row["run"]) if row["task"] else None,
        ),
        Fact(
            "adopted from",
            "" if row["source_id"] is None else f"experience {row['source_id']}",
            None if row["source_id"] is None else layout.link("experience", row["source_id"]),
        ),
        Fact("written", moment(row["created_at"])),
    ]


def _steps(row: Mapping[str, Any]) -> None:
    """Show links to the other steps of a rollout that has several."""
    if len(row["steps"]) < 2:
        return
    with element("p", "Steps of this rollout: ", "explained").style("margin-top: 0.9rem"):
        for step in row["steps"]:
            link = element("a", f"{step['step']}", href=layout.link("experience", step["id"])).style(
                "display: inline-block; margin-right: 0.5rem"
            )
            if step["id"] == row["id"]:
                link.props["aria-current"] = "page"


def lineage(batches: Sequence[Mapping[str, Any]]) -> str:
    """Describe in a sentence which step and version use an experience."""
    used = [batch for batch in batches if batch["state"] == "committed"]
    if not used:
        return "No policy version includes it: it is in no committed batch."
    last = used[-1]
    said_of = f"Step {last['step']} was trained on it (batch {last['id']})"
    if last["included_version"] is None:
        return f"{said_of}; no policy version includes that step yet."
    return f"{said_of}, and policy version {last['included_version']} is the first to include that step."


def turns(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the conversation as pairs of role and text; without messages the prompt is one turn."""
    if row["prompt"] is None and row["response"] is None:
        return
    yield from conversation.prompt_turns(row["messages"], row["prompt"])
    yield "assistant", row["response"] or ""


def _history(part: str, rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows and part not in MISSING:
        return
    layout.heading(part.capitalize())
    columns = [Column(name.replace("_", " "), kind) for name, kind in HISTORY[part].items()]  # type: ignore[arg-type]
    table = Rows(part, columns, MISSING.get(part, ""))
    table.show([[_cell(name, row[name]) for name in HISTORY[part]] for row in rows[-200:]])


def _cell(name: str, value: Any) -> Cell:
    if value is None:
        return Cell()
    if name == "state" or name == "outcome":
        return layout.state(value)
    if name.endswith("_id"):
        return Cell(str(value), layout.link("experience", value))
    if name.endswith("_at"):
        return Cell(moment(value))
    if name == "latest":
        return Cell("counts" if value else "superseded")
    if isinstance(value, float):
        return Cell(f"{value:.4g}")
    if isinstance(value, list):
        return Cell(layout.cut(", ".join(map(str, value))))
    if isinstance(value, Mapping):
        return Cell(layout.cut(judged(value)))
    return Cell(layout.cut(str(value)))


async def _fill(reader: Reader, row: Mapping[str, Any], first: int, content: ui.element) -> None:
    """Show the tokens once they and their texts are read."""
    try:
        tokens = await reader.ask(partial(_tokens, row=row, first=first), visitor())
    except TrinityError as error:
        tokens = str(error)
    content.clear()
    with content:
        if isinstance(tokens, str):
            element("p", tokens, "empty")
            return
        _legend(tokens)
        Tokens(tokens["items"])
        _pages(row["id"], tokens["first"], tokens["total"])


def _tokens(database: Database, row: Mapping[str, Any], first: int) -> dict[str, Any] | str:
    if row["arrays_pruned_at"] is not None:
        return f"The arrays were pruned on {row['arrays_pruned_at']:%Y-%m-%d} by trinity-db prune."
    tokens = show.tokens(database, row["id"])
    if tokens is None:
        return "It has no tokens yet: the trainer of a run that adopts it creates them."
    total = len(tokens["token_ids"])
    first = min(first, max(total - 1, 0) // TOKENS * TOKENS)  # a link may start beyond the end
    ids = tokens["token_ids"][first : first + TOKENS]
    read = show.texts(ids, row["tokenizer"], _tokenizer)
    texts = read["texts"] or [f"{token} " for token in ids]
    return {
        "items": list(items(tokens, first, texts)),
        "first": first,
        "total": total,
        "no_texts": read.get("no_texts"),
        "has_logprobs": tokens["logprobs"] is not None,
        "has_versions": tokens["versions"] is not None,
    }


_tokenizer = lru_cache(maxsize=2)(load_tokenizer)  # one per run, though its newest checkpoint changes


def items(tokens: Mapping[str, Any], first: int, texts: Sequence[str]) -> Iterator[list[Any]]:
    """Yield each trained token and each stretch of masked tokens in the component's format."""
    ids, mask = tokens["token_ids"], tokens["action_mask"]
    trained = sum(mask[:first])
    start = first
    for position in range(first, first + len(texts) + 1):
        is_end = position == first + len(texts)
        if not is_end and not mask[position]:
            continue
        if start < position:
            text = "".join(texts[start - first : position - first])
            yield [_shortened(text), start, position - 1, None, None, None, False]
        if not is_end:
            logprob, version = (
                None if tokens[key] is None else tokens[key][trained] for key in ("logprobs", "versions")
            )
            yield [texts[position - first], position, position, ids[position], logprob, version, True]
            trained += 1
        start = position + 1


def _shortened(text: str) -> str:
    half = STRETCH // 2
    return text if len(text) <= STRETCH else f"{text[:half]} … {text[-half:]}"


def _legend(tokens: Mapping[str, Any]) -> None:
    with element("p", "", "legend"):
        if tokens["has_logprobs"]:
            with element("span", "log-probability: 0 nats "):
                element("span", "", "ramp")
                element("span", " −5 nats or less")
        element("span", "grey: masked, not trained on")
        if tokens["has_versions"]:
            element("span", "v3: sampled by policy version 3 from here on")
        element("span", "Point at a token for its numbers, or select one by touch or with ← and →.")
    if tokens["no_texts"]:
        element(
            "p", f"Showing token ids, because the texts cannot be read: {tokens['no_texts']}", "explained"
        )


def _pages(experience_id: int, first: int, total: int) -> None:
    if total <= TOKENS and first == 0:
        return
    with element("div", "", "more"):
        element("span", f"Tokens {first:,} to {min(first + TOKENS, total) - 1:,} of {total:,}")
        for label, start in (("Before", first - TOKENS), ("After", first + TOKENS)):
            if -TOKENS < start < total:
                element(
                    "a", label, "button", href=layout.link("experience", experience_id, start=max(start, 0))
                )
