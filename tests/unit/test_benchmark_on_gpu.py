"""Messages and the table of `make gpu` for what it cannot measure."""

import pytest
import torch
from typer import Typer
from typer.testing import CliRunner

from benchmarks.gpu import measurement, table
from benchmarks.gpu.__main__ import main


def test_without_a_gpu_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    app = Typer()
    app.command()(main)
    refused = CliRunner().invoke(app, [])
    assert refused.exit_code == 1
    assert refused.output.count("\n") <= 1
    assert "finds no GPU here" in str(refused.exception) + refused.output


def test_what_was_not_measured_is_no_number_in_the_table() -> None:
    rows = [
        measurement.Row("7b", "grpo, all weights", "trinity-db", {"tokens/s": 1234.0}, stage="speed"),
        measurement.Row("7b", "grpo, all weights", "TRL", note=measurement.OUT_OF_MEMORY, stage="speed"),
    ]
    lines = table.markdown({"gpu": "a GPU"}, rows).splitlines()
    assert lines[0] == "## speed"
    assert lines[4:6] == [
        "| 7b | grpo, all weights | trinity-db | 1,234 |  |",
        "| 7b | grpo, all weights | TRL | – | out of memory |",
    ]


@pytest.mark.parametrize(
    ("complaint", "said"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", measurement.OUT_OF_MEMORY),
        ("not installed: run make bench", "not installed: run make bench"),
        ("Traceback ... ValueError: no", measurement.FAILED),
    ],
)
def test_a_measurement_that_failed_says_why(complaint: str, said: str) -> None:
    assert measurement.reason_of(complaint) == said
