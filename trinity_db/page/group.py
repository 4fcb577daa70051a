"""The page of a rollout group: attempts side by side, their rewards, and the step that used them."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from nicegui import ui

from trinity_db.insight.words import moment
from trinity_db.page import layout, questions, texts
from trinity_db.page.elements import Fact, Facts, element
from trinity_db.page.reader import Reader

JUDGED = 1_500  # characters of a judge's text about one reward


def register(reader: Reader) -> None:
    """Add the page."""

    @ui.page("/group/{group_id}", response_timeout=layout.RESPONSE_SECONDS)
    async def group_page(group_id: str) -> None:
        with layout.frame(f"Group {group_id}"):
            if (number := layout.identifier(group_id)) is None:
                element("p", "Group ids are whole numbers.", "notice", role="alert")
                return
            await layout.once(reader, partial(questions.group, group_id=number), _show).look()


def _show(group: dict[str, Any]) -> None:
    Facts().show(_facts(group))
    layout.heading("Task")
    with element("div", "", "card"):
        texts.show(task_text(group["payload"]))
    layout.heading("Attempts", "Side by side, in the order of the group. Rewards: value × weight, by source.")
    if not group["rows"] and not group["failures"]:
        element("p", "No attempt has ended yet. Reload this page later.", "empty")
    with element("div", "", "beside"):
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
    same = layout.link("experiences", run=group["run"], task=group["task"])
    return [
        Fact("run", group["run"], layout.link("run", group["run"])),
        Fact("state", group["state"]),
        Fact("attempts", members),
        Fact("mean reward", f"{reward}{spread}" if reward else "none yet"),
        Fact("policy versions", versions),
        Fact("used by", layout.count(group["use_count"], "committed batch", "committed batches")),
        Fact("taskset", group["taskset"]),
        Fact("other rows of this task", group["task"], same),
        Fact(
            "the task over versions", "then and now", layout.link("task", group["task_id"], run=group["run"])
        ),
        Fact("started", moment(group["created_at"])),
        Fact("completed", moment(group["completed_at"]) if group["completed_at"] else ""),
    ]


def task_text(payload: Mapping[str, Any]) -> str:
    """Text of a task: its prompt, or else its whole payload."""
    prompt = payload.get("prompt")
    fields = {key: value for key, value in payload.items() if key != "prompt"}
    if not isinstance(prompt, str):
        return json.dumps(payload, ensure_ascii=False, indent=1)
    return f"{prompt}\n\n{json.dumps(fields, ensure_ascii=False)}" if fields else prompt


def attempt(row: Mapping[str, Any], *, with_group: bool = False) -> None:
    """Show an attempt as a card, on request with a link to its group."""
    with element("section", "", "card"):
        with element("h3"):
            element("a", questions.label_of(row).capitalize(), href=layout.link("experience", row["id"]))
        element("span", row["state"], f"chip state-{row['state']}")
        if with_group:
            element("a", f"group {row['group_id']}", "aside", href=layout.link("group", row["group_id"]))
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
        element("p", " · ".join(part for part in parts if part), "muted").style("margin: 0.3rem 0 0.5rem")
        more = (row["characters"] or 0) - len(row["response"] or "")
        element("pre", row["response"] or "", "text")
        if more > 0:
            words = f"… {more:,} more characters: read them all"
            element("a", words, href=layout.link("experience", row["id"]))
        _rewards(row["parts"] or [])
        element("p", _use(row), "muted").style("margin: 0.5rem 0 0")


def _rewards(parts: list[Mapping[str, Any]]) -> None:
    if not parts:
        element("p", "No reward yet.", "muted").style("margin: 0.5rem 0 0")
        return
    with element("ul", "", "judged"):
        for part in parts:
            by = f" by {part['by']}" if part["by"] else ""
            text = f"{part['name']}: {part['value']:.4g} × {part['weight']:.4g}, from {part['source']}{by}"
            if part["detail"]:
                text += f"\n{layout.cut(judged(part['detail']), JUDGED)}"
            element("li", text)


def judged(detail: Mapping[str, Any]) -> str:
    """Format what a judge or step recorded with a reward, one line per field."""
    return "\n".join(
        f"{key}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}"
        for key, value in detail.items()
    )


def _use(row: Mapping[str, Any]) -> str:
    """Describe the step that last used an attempt, and its advantage."""
    if row["batch_step"] is None:
        return "No batch has used it yet."
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
    with element("section", "", "card"):
        element("h3", f"Attempt {failure['ordinal']} failed")
        element("span", "failed", "chip state-failed")
        element("p", moment(failure["finished_at"]), "muted").style("margin: 0.3rem 0 0.5rem")
        element("pre", failure["error"], "text")
        if failure["output"] is not None:
            element("p", "The program wrote:", "muted")
            element("pre", failure["output"], "text")
