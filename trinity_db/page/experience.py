"""One experience: its conversation, its tokens, its history, and the version that it became a part of."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from nicegui import ui

from trinity_db.database import Database
from trinity_db.errors import TrinityError
from trinity_db.inspection import show
from trinity_db.inspection.words import moment
from trinity_db.models import load_tokenizer
from trinity_db.page import conversation, layout, questions, texts
from trinity_db.page.elements import Cell, Column, Fact, Facts, Rows, Tokens, said
from trinity_db.page.group import judged
from trinity_db.page.reader import Reader
from trinity_db.page.rights import visitor

TOKENS = 4_000  # that are shown at a time; more make a browser slow
STRETCH = 4_000  # characters of a masked stretch that are shown, of its beginning and its end together
HISTORY: Mapping[str, Mapping[str, str]] = {
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
"""The tables about an experience, each with the columns that are shown and how."""
MISSING = {
    "rewards": "No reward yet. The score processor gives one, or trinity-db reward, or trinity-db label.",
    "batches": "No batch used it yet.",
}
"""What stands in place of a table without rows. Others are left out."""


def register(reader: Reader) -> None:
    """Add the page."""

    @ui.page("/experience/{experience_id}", response_timeout=layout.RESPONSE_SECONDS)
    async def experience_page(experience_id: str, start: str = "0") -> None:
        with layout.frame(f"Experience {experience_id}"):
            number, first = layout.identifier(experience_id), layout.identifier(start)
            if number is None or first is None:
                said("p", "Experiences and tokens have whole numbers.", "notice", role="alert")
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
    said("p", lineage(row["batches"]), "explained").style("margin-top: 0.9rem")
    said("a", "Similar rows", "button", href=layout.place("similar", to=row["id"]))
    layout.heading("Conversation")
    conversation.show(turns(row))
    if row["environment"] is not None:
        layout.heading("State of the environment")
        with said("div", "", "card"):
            texts.show(row["environment"])
    layout.heading("Tokens")
    place = said("div")
    with place:
        said("p", "The tokens are being read; the tokenizer takes some seconds the first time.", "explained")
    for part in HISTORY:
        _history(part, row[part])
    layout.later(partial(_fill, reader, row, first, place))


def _facts(row: Mapping[str, Any]) -> list[Fact]:
    group = row["group_id"]
    same = layout.place("experiences", run=row["run"], task=row["task"])
    stale = row["staleness_now"]
    lengths = [row["prompt_length"], row["response_length"]]
    return [
        Fact("run", row["run"], layout.place("run", row["run"])),
        Fact("state", row["state"] + (", held out" if row["held_out"] else "")),
        Fact("reward", "none yet" if row["reward"] is None else f"{row['reward']:.4g}"),
        Fact(
            "group",
            "" if group is None else str(group),
            None if group is None else layout.place("group", group),
        ),
        Fact("policy versions", layout.versions(row["version_min"], row["version_max"])),
        Fact("model", row["model"] or ""),
        Fact("staleness now", "" if stale is None else layout.count(stale, "version", "versions")),
        Fact(
            "length",
            "" if None in lengths else f"{lengths[0]:,} tokens of prompt, {lengths[1]:,} of response",
        ),
        Fact("used by", layout.count(row["use_count"], "committed batch", "committed batches")),
        Fact("ended by", row["finish_reason"] or ""),
        Fact("task", row["task"] or "", same if row["task"] else None),
        Fact("taskset", row["taskset"] or ""),
        Fact(
            "the task over versions",
            "then and now" if row["task"] else "",
            layout.place("task", row["task_id"], run=row["run"]) if row["task"] else None,
        ),
        Fact(
            "adopted from",
            "" if row["source_id"] is None else f"experience {row['source_id']}",
            None if row["source_id"] is None else layout.place("experience", row["source_id"]),
        ),
        Fact("written", moment(row["created_at"])),
    ]


def _steps(row: Mapping[str, Any]) -> None:
    """Links to the other steps of a rollout that has several."""
    if len(row["steps"]) < 2:
        return
    with said("p", "Steps of this rollout: ", "explained").style("margin-top: 0.9rem"):
        for one in row["steps"]:
            link = said("a", f"{one['step']}", href=layout.place("experience", one["id"])).style(
                "display: inline-block; margin-right: 0.5rem"
            )
            if one["id"] == row["id"]:
                link.props["aria-current"] = "page"


def lineage(batches: Sequence[Mapping[str, Any]]) -> str:
    """What became of an experience, in a sentence."""
    used = [one for one in batches if one["state"] == "committed"]
    if not used:
        return "It is part of no policy version: no committed batch has it."
    last = used[-1]
    said_of = f"Step {last['step']} was trained on it (batch {last['id']})"
    if last["included_version"] is None:
        return f"{said_of}; no policy version includes that step yet."
    return f"{said_of}, and policy version {last['included_version']} is the first that includes the step."


def turns(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The conversation as pairs of a role and a text; without messages the prompt is one turn."""
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
        return Cell(str(value), layout.place("experience", value))
    if name.endswith("_at"):
        return Cell(moment(value))
    if name == "latest":
        return Cell("counts" if value else "followed by another")
    if isinstance(value, float):
        return Cell(f"{value:.4g}")
    if isinstance(value, Mapping):
        return Cell(layout.cut(judged(value)))
    return Cell(layout.cut(str(value)))


async def _fill(reader: Reader, row: Mapping[str, Any], first: int, place: ui.element) -> None:
    """Show the tokens, once they and the text of each are read."""
    try:
        found = await reader.ask(partial(_tokens, row=row, first=first), visitor())
    except TrinityError as error:
        found = str(error)
    place.clear()
    with place:
        if isinstance(found, str):
            said("p", found, "empty")
            return
        _legend(found)
        Tokens(found["items"])
        _pages(row["id"], found["first"], found["total"])


def _tokens(database: Database, row: Mapping[str, Any], first: int) -> dict[str, Any] | str:
    if row["arrays_pruned_at"] is not None:
        return f"The arrays were pruned on {row['arrays_pruned_at']:%Y-%m-%d} by trinity-db prune."
    found = show.tokens(database, row["id"])
    if found is None:
        return "It has no tokens yet: the trainer of a run that adopts it makes them."
    total = len(found["token_ids"])
    first = min(first, max(total - 1, 0) // TOKENS * TOKENS)  # a link may begin beyond the end
    ids = found["token_ids"][first : first + TOKENS]
    read = show.texts(ids, row["tokenizer"], _tokenizer)
    texts = read["texts"] or [f"{token} " for token in ids]
    return {
        "items": list(items(found, first, texts)),
        "first": first,
        "total": total,
        "no_texts": read.get("no_texts"),
        "has_logprobs": found["logprobs"] is not None,
        "has_versions": found["versions"] is not None,
    }


_tokenizer = lru_cache(maxsize=2)(load_tokenizer)  # a run has one, though its newest checkpoint changes


def items(found: Mapping[str, Any], first: int, texts: Sequence[str]) -> Iterator[list[Any]]:
    """Each trained token, and each stretch of masked tokens, as the component takes them."""
    ids, mask = found["token_ids"], found["action_mask"]
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
                None if found[key] is None else found[key][trained] for key in ("logprobs", "versions")
            )
            yield [texts[position - first], position, position, ids[position], logprob, version, True]
            trained += 1
        start = position + 1


def _shortened(text: str) -> str:
    half = STRETCH // 2
    return text if len(text) <= STRETCH else f"{text[:half]} … {text[-half:]}"


def _legend(found: Mapping[str, Any]) -> None:
    with said("p", "", "legend"):
        if found["has_logprobs"]:
            with said("span", "log-probability: 0 nats "):
                said("span", "", "ramp")
                said("span", " −5 nats or less")
        said("span", "grey: masked, not trained on")
        if found["has_versions"]:
            said("span", "v3: from here on policy version 3")
        said("span", "Point at a token for its numbers, or choose one by touch or by ← and →.")
    if found["no_texts"]:
        said("p", f"Shown by their ids, as the texts cannot be read: {found['no_texts']}", "explained")


def _pages(experience_id: int, first: int, total: int) -> None:
    if total <= TOKENS and first == 0:
        return
    with said("div", "", "more"):
        said("span", f"Tokens {first:,} to {min(first + TOKENS, total) - 1:,} of {total:,}")
        for label, start in (("Before", first - TOKENS), ("After", first + TOKENS)):
            if -TOKENS < start < total:
                said(
                    "a", label, "button", href=layout.place("experience", experience_id, start=max(start, 0))
                )
