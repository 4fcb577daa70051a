"""Runs of words that texts have in common with tasks for evaluation, against a count by hand."""

from hypothesis import given
from hypothesis import strategies as st

from trinity_db.processors.jobs.overlap import EvaluatedTasks

WORDS = st.lists(st.sampled_from("abc"), max_size=30)


def by_hand(task: list[str], text: list[str], length: int) -> float:
    """The share of the task's different runs that stand in the text, each looked for at each place."""
    if len(task) < min(length, 8):
        return 0.0
    size = min(length, len(task))
    asked = []
    for start in range(len(task) - size + 1):
        run = task[start : start + size]
        if run not in asked:
            asked.append(run)
    found = [run for run in asked if any(text[start : start + size] == run for start in range(len(text)))]
    return len(found) / len(asked)


@given(WORDS, WORDS, st.integers(1, 13))
def test_the_share_is_that_of_a_count_by_hand(task: list[str], text: list[str], length: int) -> None:
    tasks = EvaluatedTasks(length)
    tasks.add(7, {"prompt": " ".join(task)})
    expected = by_hand(task, text, length)
    found = tasks.found_in([" ".join(text)])
    assert [one.share for one in found] == ([expected] if expected else [])
    assert (tasks.num_tasks, tasks.too_short) == ((0, 1) if len(task) < min(length, 8) else (1, 0))


LONG = "Natalia sold clips to forty eight of her friends in April, and then she sold half as many in May."


def test_every_text_of_a_payload_counts_and_case_and_signs_do_not() -> None:
    tasks = EvaluatedTasks(13)
    tasks.add(1, {"messages": [{"role": "user", "content": LONG}], "answer": "72"})
    tasks.add(2, {"prompt": "What is 2 + 2?", "answer": LONG.partition(" ")[2]})
    tasks.add(3, {"prompt": "What is 2 + 2?", "answer": "4"})
    assert (tasks.num_tasks, tasks.too_short) == (2, 1)
    found = {one.task_id: one.share for one in tasks.found_in(["Well.", LONG.upper().replace(" ", " - ")])}
    assert found == {1: 1.0, 2: 1.0}
    assert tasks.found_in([LONG[:50], LONG[50:]]) == [], "a run does not go from one text into the next"


def test_of_a_text_that_is_shorter_than_a_run_all_words_have_to_be_there() -> None:
    tasks = EvaluatedTasks(13)
    tasks.add(1, {"prompt": "one two three four five six seven eight"})
    assert [one.share for one in tasks.found_in(["so one two three four five six seven eight it is"])] == [
        1.0
    ]
    assert tasks.found_in(["one two three four five six seven nine"]) == []
