"""A rollout group: its attempts side by side, what each was rewarded for, which step used it."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from nicegui import ui

from trinity_db.inspection.words import moment
from trinity_db.page import layout, questions, texts
from trinity_db.page.elements import Fact, Facts, said
from trinity_db.page.reader import Reader

JUDGED = 1_500  # characters of what a judge wrote about one reward


def register(reader: Reader) -> None:
    """Add the page."""

    @ui.page("/group/{group_id}", response_timeout=layout.RESPONSE_SECONDS)
    async def group_page(group_id: str) -> None:
        with layout.frame(f"Group {group_id}"):
            if (number := layout.identifier(group_id)) is None:
                said("p", "Groups have whole numbers.", "notice", role="alert")
                return
            await layout.once(reader, partial(questions.group, group_id=number), _show).look()


def _show(group: dict[str, Any]) -> None:
    Facts().show(_facts(group))
    layout.heading("Task")
    with said("div", "", "card"):
        texts.show(asked(group["payload"]))
    layout.heading("Attempts", "Side by side, in the order of the group. Rewards: value × weight, by source.")
    if not group["rows"] and not group["failures"]:
        said("p", "No attempt has ended yet. Load this page again when one may have.", "empty")
    with said("div", "", "beside"):
        for row in group["rows"]:
            attempt(row)
        for failure in group["failures"]:
            _failure(failure)


def _facts(group: Mapping[str, Any]) -> list[Fact]:
    members = f"{group['arrived']} arrived and {group['failed']} failed of {group['expected']}"
    deviation = group["reward_deviation"]
    reward = layout.number(group["reward_mean"])
    spread = f", deviation {deviation:.3f}" if deviation is not None else ""
    versions = layout.versions(group["version_min"], group["version_max"])
    same = layout.place("experiences", run=group["run"], task=group["task"])
    return [
        Fact("run", group["run"], layout.place("run", group["run"])),
        Fact("state", group["state"]),
        Fact("attempts", members),
        Fact("mean reward", f"{reward}{spread}" if reward else "none yet"),
        Fact("policy versions", versions),
        Fact("used by", layout.count(group["use_count"], "committed batch", "committed batches")),
        Fact("taskset", group["taskset"]),
        Fact("other rows of this task", group["task"], same),
        Fact(
            "the task over versions", "then and now", layout.place("task", group["task_id"], run=group["run"])
        ),
        Fact("started", moment(group["created_at"])),
        Fact("completed", moment(group["completed_at"]) if group["completed_at"] else ""),
    ]


def asked(payload: Mapping[str, Any]) -> str:
    """What a task asks: its prompt, or all that it holds."""
    prompt = payload.get("prompt")
    rest = {key: value for key, value in payload.items() if key != "prompt"}
    if not isinstance(prompt, str):
        return json.dumps(payload, ensure_ascii=False, indent=1)
    return f"{prompt}\n\n{json.dumps(rest, ensure_ascii=False)}" if rest else prompt


def attempt(row: Mapping[str, Any], *, with_group: bool = False) -> None:
    """An attempt as a card; with a link to its group where that is not at hand."""
    with said("section", "", "card"):
        with said("h3"):
            said("a", questions.label_of(row).capitalize(), href=layout.place("experience", row["id"]))
        said("span", row["state"], f"chip state-{row['state']}")
        if with_group:
            said("a", f"group {row['group_id']}", "aside", href=layout.place("group", row["group_id"]))
        length = row["response_length"]
        parts = [
            "" if row["reward"] is None else f"reward {row['reward']:.3f}",
            "" if length is None else layout.count(length, "token", "tokens"),
            f"version {layout.versions(row['version_min'], row['version_max'])}"
            if row["version_min"] is not None
            else row["model"] or "",
            f"ended by {row['finish_reason']}" if row["finish_reason"] else "",
            "greedy: others are compared with it" if row["greedy"] else "",
            f"dropped: {row['reason']}" if row["reason"] else "",
        ]
        said("p", " · ".join(part for part in parts if part), "muted").style("margin: 0.3rem 0 0.5rem")
        more = (row["characters"] or 0) - len(row["response"] or "")
        said("pre", row["response"] or "", "text")
        if more > 0:
            words = f"… {more:,} more characters: read all of them"
            said("a", words, href=layout.place("experience", row["id"]))
        _rewards(row["parts"] or [])
        said("p", _use(row), "muted").style("margin: 0.5rem 0 0")


def _rewards(parts: list[Mapping[str, Any]]) -> None:
    if not parts:
        said("p", "No reward yet.", "muted").style("margin: 0.5rem 0 0")
        return
    with said("ul", "", "judged"):
        for part in parts:
            by = f" by {part['by']}" if part["by"] else ""
            text = f"{part['name']}: {part['value']:.4g} × {part['weight']:.4g}, from {part['source']}{by}"
            if part["detail"]:
                text += f"\n{layout.cut(judged(part['detail']), JUDGED)}"
            said("li", text)


def judged(detail: Mapping[str, Any]) -> str:
    """What a judge or a step wrote about a reward, a line for each thing."""
    return "\n".join(
        f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for key, value in detail.items()
    )


def _use(row: Mapping[str, Any]) -> str:
    """Which step used it last, and with which advantage."""
    if row["batch_step"] is None:
        return "No batch used it yet."
    advantage = "" if row["advantage"] is None else f" with the advantage {row['advantage']:.3f}"
    stale = (
        ""
        if row["staleness"] is None
        else f", stale by {layout.count(row['staleness'], 'version', 'versions')}"
    )
    version = row["included_version"]
    included = "" if version is None else f"; policy version {version} includes it"
    return f"Step {row['batch_step']} ({row['used_state']}) used it{advantage}{stale}{included}."


def _failure(failure: Mapping[str, Any]) -> None:
    with said("section", "", "card"):
        said("h3", f"Attempt {failure['ordinal']} failed")
        said("span", "failed", "chip state-failed")
        said("p", moment(failure["finished_at"]), "muted").style("margin: 0.3rem 0 0.5rem")
        said("pre", failure["error"], "text")
