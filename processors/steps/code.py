"""Unit tests for the model's code, run in a sandbox whose code processes never see the expected results."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, get_args

from pydantic import Field

from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.models.chat.thoughts import after_thoughts
from trinity_db.processors.children import sandboxes
from trinity_db.processors.children.pool import Pool
from trinity_db.processors.children.sandboxes import Sandbox
from trinity_db.processors.lists.step import Answer, Context, step
from trinity_db.processors.unit_tests.forms import UnitTest, of_task, prompt_of


@step(version=3, batch=64)
class CodeTests:
    """Scores the share of the task's unit tests that the code of the response passes.

    The code is the last block marked as Python that defines the tested function, or, if programs are tested,
    runs as a program, together with blocks that define what it lacks. Next come blocks without a language,
    then the whole response. Thoughts are ignored.

    The tests are a column of the task, in the form of APPS, TACO, LiveCodeBench, Codeforces, HumanEval or
    MBPP (see Unit tests below). A test that cannot be understood or judged fails the row.

    Each test runs in its own process, without network, files to write, other processes, or more memory and
    time than allowed. The code's process receives the input or the call, but no expected result. If
    the sandbox cannot be set up as configured, no code runs and the row fails. `reward_event.detail` records
    the sandbox, the number of tests, the number passed, and the first failure.

    Args:
        tests: Column of the task with the tests.
        sandbox: landlock: Landlock, seccomp and resource limits, without privileges. bubblewrap: namespaces
            of the program bwrap, seccomp and resource limits, for kernels without Landlock.
        seconds: Time limit of one test.
        row_seconds: Time limit of all tests of a row. Tests that do not start within it count as failed.
        memory_mb: Limit of a test's address space.
        processes: Rows tested concurrently.
    """

    def __init__(
        self,
        run: Context,
        *,
        tests: str = "tests",
        sandbox: Sandbox = "landlock",
        seconds: Annotated[float, Field(gt=0, le=3600)] = 5.0,
        row_seconds: Annotated[float, Field(gt=0, le=86_400)] = 60.0,
        memory_mb: Annotated[int, Field(ge=64, le=1 << 20)] = 1024,
        processes: Annotated[int, Field(ge=1, le=256)] = 2,
    ) -> None:
        self._column = tests
        self._sandbox = sandbox
        self._limits = (seconds, row_seconds, memory_mb)
        self._pool = Pool(sandboxes.command(sandbox), processes, row_seconds + 2 * seconds + 10.0)

    @staticmethod
    def check(model: ModelConfig, *, sandbox: Sandbox, **options: Any) -> None:
        """Check before the run is created that the sandbox works on this machine.

        Raises:
            ConfigError: if it does not.
        """
        if why := sandboxes.fault(sandbox):
            working = [name for name in get_args(Sandbox) if sandboxes.fault(name) is None]
            remedy = f"set sandbox: {working[0]}" if working else "process on a machine where one does"
            raise ConfigError(f"code_tests: the sandbox {sandbox} does not work here: {why}; {remedy}.")

    def __call__(
        self, response: Sequence[str], task: Sequence[Mapping[str, Any]], prompt: Sequence[str]
    ) -> Iterator[tuple[int, Answer | Exception]]:
        """Yield the share of each row, or the error of a row that could not be scored."""
        rows: list[tuple[int, list[UnitTest]]] = []
        requests = []
        for index, (text, columns, task_prompt) in enumerate(zip(response, task, prompt, strict=True)):
            try:
                tests = of_task(columns, self._column)
            except ValueError as error:
                yield index, error
                continue
            rows.append((index, tests))
            requests.append(self._request(after_thoughts(text, task_prompt), tests, prompt_of(columns)))
        for number, outcome in self._pool.ask(requests):
            index, tests = rows[number]
            is_error = isinstance(outcome, Exception)
            yield index, RuntimeError(f"code_tests: {outcome}") if is_error else _share(tests, outcome)

    def _request(self, response: str, tests: Sequence[UnitTest], prompt: str) -> bytes:
        judges: list[Any] = []
        payloads = []
        for test in tests:
            payloads.append(dict(test.request))
            if test.judged_by is not None:
                payloads[-1]["text" if "text" in test.judged_by else "checker"] = len(judges)
                judges.append(test.judged_by)
        names = frozenset().union(*(test.names for test in tests))
        return sandboxes.request(
            self._sandbox,
            response,
            payloads,
            *self._limits,
            judges=judges,
            names=sorted(names),
            prompt=prompt,
        )


def _share(tests: Sequence[UnitTest], outcome: Mapping[str, Any]) -> Answer:
    failures = [test.failure(result) for test, result in zip(tests, outcome["results"], strict=True)]
    passed = failures.count(None)
    detail: dict[str, Any] = {"sandbox": outcome["sandbox"], "tests": len(tests), "passed": passed}
    if passed < len(tests):
        number, why = next((number, why) for number, why in enumerate(failures, 1) if why is not None)
        detail["first_failure"] = f"test {number}: {why}"
    return Answer(passed / len(tests), detail)
