"""What `make gpu` says where it cannot measure, and how its table shows that."""

import pytest
import torch
from typer import Typer
from typer.testing import CliRunner

from benchmarks.gpu import speed, table
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
        speed.Row("7b", "grpo, all weights", "trinity-db", {"tokens/s": 1234.0}),
        speed.Row("7b", "grpo, all weights", "TRL", note=speed.OUT_OF_MEMORY),
    ]
    lines = table.markdown({"gpu": "a GPU"}, rows).splitlines()
    assert lines[2:4] == [
        "| 7b | grpo, all weights | trinity-db | 1,234 |  |",
        "| 7b | grpo, all weights | TRL | – | out of memory |",
    ]


@pytest.mark.parametrize(
    ("complaint", "said"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", speed.OUT_OF_MEMORY),
        ("not installed: run make bench", "not installed: run make bench"),
        ("Traceback ... ValueError: no", speed.FAILED),
    ],
)
def test_a_measurement_that_failed_says_why(complaint: str, said: str) -> None:
    assert speed.reason_of(complaint) == said
