"""Pages of people's verdicts: what waits, a queue to judge, verdicts by person, and disagreements."""

from collections.abc import Mapping
from typing import Any

from nicegui import ui
from psycopg.rows import DictRow

from trinity_db.insight.words import moment
from trinity_db.page import layout, people
from trinity_db.page.elements import Cell, Column, Fact, Facts, Rows, element
from trinity_db.page.judging import Judging
from trinity_db.page.layout import Look
from trinity_db.page.people import Agreement, Queue
from trinity_db.page.reader import Reader
from trinity_db.page.rights import Right, may, visitor
from trinity_db.page.writer import Writer
from trinity_db.schema.states import RunKind

ONLY_READS = "This page is read-only. Give verdicts here with: trinity-db page --by YOUR_NAME"
MAY_NOT = "You may look here. To give verdicts, you need the right to label in the file of people."
TOO_LATE = "Nobody had the right to label when the page was started: restart it to give verdicts."
EMPTY = "There are no runs in this store yet.\ntrinity-db demo makes one in two minutes."
NO_PAIRS = (
    "'{run}' is a data set without pairs to compare. Its rows can be compared in a run that has the data "
    "set under data."
)
SIDES = {1: "first is better", -1: "second is better", 0: "tie"}
QUEUES = ("rows", "pairs")


def register(reader: Reader, writer: Writer | None) -> None:
    """Add the pages; without a writer they are read-only."""

    @ui.page("/verdicts", response_timeout=layout.RESPONSE_SECONDS)
    async def verdicts_page() -> None:
        with layout.frame("Verdicts", "Verdicts"):
            if refusal := _refusal(writer):
                element("p", refusal, "explained")
            page = _Queues(reader)
            await page.look.look()

    @ui.page("/verdicts/{name:path}", response_timeout=layout.RESPONSE_SECONDS)
    async def queue_page(name: str, queue: str = "rows") -> None:
        with layout.frame(f"Verdicts on {name}", "Verdicts"):
            if queue not in QUEUES:
                element("p", "A queue is rows or pairs.", "notice", role="alert")
                return
            allowed = writer if may(Right.LABEL) else None
            page = _Queue(reader, allowed, layout.text(name), queue == "pairs")
            await page.look.look()


def _refusal(writer: Writer | None) -> str | None:
    """Reason why the visitor may not give verdicts; None if the visitor may."""
    you = visitor()
    if not you.may(Right.LABEL):
        return ONLY_READS if you.name is None else MAY_NOT
    return TOO_LATE if writer is None else None


class _Queues:
    def __init__(self, reader: Reader) -> None:
        self.look = Look(reader, people.queues, self.show, lambda: None, follows=True)
        layout.heading("Queues", "Items that wait for verdicts. Choose rows to judge, or pairs to compare.")
        columns = (
            Column("run"),
            Column("rows", "number", "experiences in the queue that need more verdicts"),
            Column("pairs", "number", "pairs that need more verdicts"),
            Column("not asked yet", "number", "experiences the run waits for; opening the queue adds them"),
        )  # fmt: skip
        self._table = Rows("queues", columns, EMPTY)

    def show(self, rows: list[DictRow]) -> None:
        self._table.show(
            [
                [
                    Cell(row["run"], layout.link("verdicts", row["run"])),
                    Cell(_counted(row["rows"]), layout.link("verdicts", row["run"])),
                    _pairs(row),
                    Cell(_counted(row["unasked"])),
                ]
                for row in rows
            ]
        )


class _Queue:
    """The queue of a run, rows or pairs; with a writer, for the visitor to judge."""

    def __init__(self, reader: Reader, writer: Writer | None, run: str, pairs: bool) -> None:
        self._writer, self._run, self._pairs = writer, run, pairs
        self._author = author = None if writer is None else visitor().name
        read = people.queue(run, author, pairs)
        self.look = Look(reader, read, self.show, self.gone, follows=True)
        self._content = element("div")
        self._judging: Judging | None = None
        with self._content:
            with element("p", "", "explained"):
                for queue in QUEUES:
                    link = element("a", queue, href=layout.link("verdicts", run, queue=queue)).style(
                        "margin-right: 0.9rem"
                    )
                    if (queue == "pairs") == pairs:
                        link.props["aria-current"] = "page"
            if refusal := _refusal(writer):
                element("p", refusal, "explained")
            self._refused = element("p", NO_PAIRS.format(run=run), "empty")
            self._refused.set_visibility(False)
            self._judged = element("div")
            layout.heading("Progress")
            self._facts = Facts()
            self._drawn = element("p", "", "explained", role="status").style("margin-top: 0.9rem")
            self._people = _people()
            read_all = people.agreement(run, author)
            self._agreed = Look(reader, read_all, self.show_agreement, lambda: None, follows=False)
            self._people_agree = element("div")
            self._people_agree.set_visibility(False)  # until it is loaded
            with self._people_agree:
                self._agreement, self._disputes = _agreement(), _disputes()
        layout.later(self._agreed.look)

    def show(self, queue: Queue) -> None:
        is_refused = queue.is_data and self._pairs
        self._refused.set_visibility(is_refused)
        if self._judging is None and not is_refused:
            self._judge()
        self._facts.show(_facts(queue, self._author, self._pairs))
        self._drawn.text = "" if queue.drawn is None else drawn(queue.drawn, self._run)
        self._people.show([_person(row) for row in queue.people])

    def _judge(self) -> None:
        """Show the queue to a person who may judge."""
        if self._writer is not None and self._author is not None:
            with self._judged:
                self._judging = Judging(self._writer, self._author, self._run, self._pairs, self.look.soon)

    def show_agreement(self, agreement: Agreement) -> None:
        self._people_agree.set_visibility(True)
        self._agreement.show([_agreed(row) for row in agreement.alphas])
        self._disputes.show([_dispute(row) for row in agreement.disputes])

    def gone(self) -> None:
        if self._judging is not None:
            layout.later(self._judging.leave)
        self._content.set_visibility(False)


def drawn(used: Mapping[str, Any], run: str) -> str:
    """Describe in a sentence how many verdicts of the person are in batches."""
    verdicts = used["verdicts"]
    if not used["drawn"]:
        return "None of your verdicts is in a batch yet: the next draw uses them." if verdicts else ""
    whole = f"your newest {verdicts:,} verdicts" if verdicts == people.DRAWN else "your verdicts"
    verb = "is in a batch" if used["drawn"] == 1 else "are in batches"
    where = "" if used["run"] == run else f" of run {used['run']}"
    return f"{used['drawn']:,} of {whole} {verb}, the last in step {used['step']:,}{where}."


def _pairs(row: DictRow) -> Cell:
    """Link to the queue of pairs; empty for a data set."""
    if row["kind"] == RunKind.DATA:
        return Cell()
    return Cell(_counted(row["pairs"]), layout.link("verdicts", row["run"], queue="pairs"))


def _counted(number: int) -> str:
    """Format a number that is counted up to a limit."""
    return f"{number:,} or more" if number == people.COUNTED else f"{number:,}"


def _facts(queue: Queue, author: str | None, pairs: bool) -> list[Fact]:
    progress, kind = queue.progress, "pairs" if pairs else "rows"
    open_questions = f"{_counted(progress.open)} {kind}"
    unasked = Fact("not asked yet", f"{_counted(queue.unasked)} {kind}" if queue.unasked else "")
    if author is None:
        return [Fact("wait", open_questions), unasked]
    return [
        Fact("you", author),
        Fact("your verdicts", f"{_counted(progress.verdicts)} on {kind}"),
        Fact("wait for you", f"{_counted(progress.waiting)} of {open_questions}"),
        unasked,
    ]


def _people() -> Rows:
    layout.heading("Verdicts by person", f"The newest {people.VERDICTS:,} on rows and pairs of this run.")
    columns = [
        Column("person"),
        Column("judged"),
        Column("of"),
        Column("verdicts", "number"),
        Column("discarded", "number", "rows or pairs that cannot be judged"),
        Column("skipped", "number", "left to other people"),
        Column("mean", "number", "mean verdict on rows"),
        Column("seconds", "number", "median time per verdict, in seconds"),
        Column("blind", "number", "verdicts that were given before the person saw rewards"),
        Column("last"),
    ]
    return Rows("verdicts by person", columns, "No verdicts yet.")


def _agreement() -> Rows:
    explained = "Krippendorff's alpha when this page was opened: 1: all agree, 0: no better than chance."
    layout.heading("Agreement", explained)
    columns = [
        Column("judged"),
        Column("of"),
        Column("reviews", "number", "rows or pairs with two verdicts or more"),
        Column("verdicts", "number"),
        Column("people", "number"),
        Column("alpha", "number", "two verdicts are equal or not; unknown if all are equal"),
        Column("alpha of grades", "number", "by the squared distance of two verdicts"),
    ]
    empty = "No row or pair has two verdicts yet. people.verdicts sets the number per row or pair."
    return Rows("agreement", columns, empty)


def _disputes() -> Rows:
    layout.heading("Judged differently", f"At most the {people.SHOWN} with the largest differences.")
    columns = [Column("experience"), Column("other"), Column("judged"), Column("verdicts", "long")]
    return Rows("judged differently", columns, "People agree on everything that two or more of them judged.")


def _person(row: Mapping[str, Any]) -> list[Cell]:
    return [
        Cell(row["author"]),
        Cell(row["name"]),
        Cell("pairs" if row["is_pair"] else "rows"),
        *(Cell(f"{row[kind]:,}") for kind in ("verdicts", "discarded", "skipped")),
        Cell(layout.number(row["mean"])),
        Cell(layout.number(row["seconds"], 1)),
        Cell(f"{row['blind']:,}"),
        Cell(moment(row["last"])),
    ]


def _agreed(row: Mapping[str, Any]) -> list[Cell]:
    return [
        Cell(row["name"]),
        Cell("pairs" if row["is_pair"] else f"rows, {row['lowest']} to {row['highest']}"),
        *(Cell(f"{row[kind]:,}") for kind in ("reviews", "verdicts", "people")),
        Cell(layout.number(row["alpha_nominal"])),
        Cell(layout.number(row["alpha_interval"])),
    ]


def _dispute(row: Mapping[str, Any]) -> list[Cell]:
    """Row with links to the experiences, and each person's verdict."""
    said_of = (
        f"{author}: {value if row['other_id'] is None else SIDES[value]}"
        for author, value in sorted(row["said"].items())
    )
    ids = [row["experience_id"], row["other_id"]]
    linked = [Cell() if id is None else Cell(str(id), layout.link("experience", id)) for id in ids]
    return [*linked, Cell(row["name"]), Cell(layout.cut("\n".join(said_of)))]
