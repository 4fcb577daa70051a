"""vLLM's server as a process: how it is started, how it ends, and what it said.

It listens on a socket in a folder that only this user may enter, since its routes for weights need no key.
"""

import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import aiohttp

from trinity_db.errors import ConfigError
from trinity_db.explorer.config import VLLMConfig
from trinity_db.explorer.engines.vllm import environment, guardian
from trinity_db.explorer.recording.command import variables

logger = logging.getLogger(__name__)

MODEL = "policy"
"""The name under which the server serves the model."""
URL = "http://vllm"  # the name of the host does not matter: the connection is the socket
INSIDE = Path(__file__).with_name("inside")
"""What vLLM's processes may import of this project."""
CPU_CACHE_GIGABYTES = 1.0
KEEP_SECONDS = 2.0  # that an idle connection is used again; vLLM closes it after 5, in the midst of a request
KILL_SECONDS = 4 * guardian.END_SECONDS
LINES = 3  # of the log that an error shows
READ_BYTES = 2**18  # of the log's end, in which an error looks for them
_SAYS_WHY = re.compile(r"\b\w*(Error|Exception)\b.*:|error:|Killed|out of memory", re.IGNORECASE)
_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) ?)?((INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[[^]]*\] ?)?")
_numbers = count(1)


@dataclass(frozen=True)
class Options:
    """Settings of a server, with the defaults of this machine."""

    config: VLLMConfig
    python: Path
    has_gpu: bool
    record_routing: bool = False
    """Whether answers say which experts were chosen."""

    @property
    def dtype(self) -> str:
        if self.config.dtype != "auto":
            return self.config.dtype
        return "bfloat16" if self.has_gpu else "float32"

    def arguments(self, model: Path, socket: Path) -> list[str]:
        """The server's arguments."""
        config = self.config
        found = {
            "--model": str(model),
            "--uds": str(socket),
            "--served-model-name": MODEL,
            # Those of the distribution that was sampled from. vLLM's default are those of temperature 1.
            "--logprobs-mode": "processed_logprobs",
            # The model's own sampling settings, such as top_p, would change that distribution.
            "--generation-config": "vllm",
            "--dtype": self.dtype,
            "--tensor-parallel-size": str(config.tensor_parallel),
            "--max-num-seqs": str(config.max_sequences),
            "--worker-extension-cls": "trinity_worker.Worker",
            "--uvicorn-log-level": "warning",
        }
        if config.context is not None:
            found["--max-model-len"] = str(config.context)
        cache = config.cache_gigabytes or (None if self.has_gpu else CPU_CACHE_GIGABYTES)
        if cache is not None:
            found["--kv-cache-memory-bytes"] = str(int(cache * 1e9))
        flags = ["--enable-scale-out"]  # the route that names the version of each token
        if not self.has_gpu:
            # On the CPU, a seeded request whose prompt is computed in parts ends the server.
            flags += ["--no-enable-chunked-prefill", "--enforce-eager"]
        if self.record_routing:
            flags.append("--enable-return-routed-experts")
        return [*(word for pair in found.items() for word in pair), *flags, *config.arguments]

    def environment(self, key: str) -> dict[str, str]:
        """The environment variables of the server's processes: ours without the store's, and its own."""
        preset = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            # The trainer computes on the same cores; vLLM would take the first ones for itself.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        if not self.has_gpu:
            preset["TORCH_COMPILE_DISABLE"] = "1"  # it takes a minute at the first request, and a compiler
        found = preset | variables()
        return found | {
            "PYTHONPATH": str(INSIDE),
            "PATH": f"{self.python.parent}{os.pathsep}{found.get('PATH', '')}",
            "VLLM_API_KEY": key,
            "VLLM_SERVER_DEV_MODE": "1",  # the routes that load weights
        }


class Server:
    """A server process that was started. Its guardian ends it when this process dies.

    Args:
        log: its output is added there.
    """

    def __init__(self, options: Options, log: Path) -> None:
        # The address of a socket has at most 107 bytes.
        parent = tempfile.gettempdir() if len(tempfile.gettempdir()) < 64 else "/tmp"
        self.folder = Path(tempfile.mkdtemp(prefix="trinity-vllm-", dir=parent))
        """Its socket and links to what it loads. Only this user may enter."""
        self.log = log
        self._options = options
        self._key = secrets.token_urlsafe(32)
        self._socket = self.folder / "socket"
        self._process: subprocess.Popen[bytes] | None = None
        self._said_before = 0
        """Bytes of the log that are of earlier servers."""

    def start(self, model: Path) -> None:
        """Start the process on the model in a folder. It takes a while until it answers."""
        options = self._options
        self.log.parent.mkdir(parents=True, exist_ok=True)
        server = [str(options.python), "-m", "vllm.entrypoints.openai.api_server"]
        command = [sys.executable, "-I", guardian.__file__, str(os.getpid()), str(self.folder), *server]
        with self.log.open("ab") as log:
            self._said_before = log.tell()
            self._process = subprocess.Popen(
                [*command, *options.arguments(model, self._socket)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=options.environment(self._key),
                start_new_session=True,
            )

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def view(self) -> Path:
        """A new folder for links to a checkpoint."""
        return self.folder / f"model-{next(_numbers)}"

    def open_session(self) -> aiohttp.ClientSession:
        """A session for requests: as many as the server samples at a time, and as many that wait there."""
        return aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(
                str(self._socket),
                limit=2 * self._options.config.max_sequences,
                keepalive_timeout=KEEP_SECONDS,
            ),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"Authorization": f"Bearer {self._key}"},
        )

    def stop(self) -> None:
        """End the process and its children, and wait until they have ended. Seconds."""
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(KILL_SECONDS)
            except subprocess.TimeoutExpired:
                logger.warning("vLLM's guardian does not end: killed")
            # Also when the guardian was killed, and its group was left behind.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _wait_for_group(process.pid)
        shutil.rmtree(self.folder, ignore_errors=True)

    def last_words(self) -> str:
        """The last lines of its log that say what went wrong, and where the log is."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                begun = self._said_before if self._said_before <= size else 0  # it was shortened since
                file.seek(max(begun, size - READ_BYTES))
                lines = [
                    _PREFIX.sub("", line).strip()
                    for line in file.read().decode(errors="replace").splitlines()
                ]
        except OSError:
            lines = []
        telling = list(dict.fromkeys(line for line in lines if _SAYS_WHY.search(line)))
        shown = telling[-LINES:] or [line for line in lines if line][-LINES:] or ["it said nothing"]
        return f"{' | '.join(line[:300] for line in shown)} (log: {self.log})"


def options_of(config: VLLMConfig, record_routing: bool = False) -> Options:
    """The settings of a server here.

    Raises:
        ConfigError: vLLM is not installed; or it is to record choices of experts, and there is no GPU.
    """
    has_gpu = environment.has_gpu()
    if record_routing and not has_gpu:
        raise ConfigError(
            "explorer.record_routing: vLLM says only on a GPU which experts were chosen, and this machine "
            "has none; leave it out, or take explorer: {engine: transformers}."
        )
    return Options(config, environment.find(config.python), has_gpu, record_routing)


def _wait_for_group(group: int) -> None:
    """Wait until a killed process group is gone, so that its memory is free."""
    until = time.monotonic() + guardian.END_SECONDS
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
