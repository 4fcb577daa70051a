"""vLLM's server process: starting it, stopping it, and quoting its log in errors.

It listens on a socket in a folder that only this user can access, since its routes for loading weights need
no key.
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
from trinity_db.explorer.engines.settings import VLLMConfig
from trinity_db.explorer.engines.vllm import environment, guardian
from trinity_db.explorer.http.command import variables

logger = logging.getLogger(__name__)

MODEL = "policy"
"""Name under which the server serves the model."""
URL = "http://vllm"  # the host name is irrelevant: connections use the socket
INSIDE = Path(__file__).with_name("inside")
"""Folder of this project that vLLM's processes may import."""
CPU_CACHE_GIGABYTES = 1.0
KEEP_SECONDS = 2.0  # reuse of idle connections; vLLM closes them after 5, possibly during a request
KILL_SECONDS = 4 * guardian.END_SECONDS
LINES = 3  # log lines quoted in an error
READ_BYTES = 2**18  # from the end of the log, searched for these lines
_SAYS_WHY = re.compile(r"\b\w*(Error|Exception)\b.*:|error:|Killed|out of memory", re.IGNORECASE)
_PREFIX = re.compile(r"^(\(\w+ pid=\d+\) ?)?((INFO|WARNING|ERROR) [\d-]+ [\d:]+ \[[^]]*\] ?)?")
_numbers = count(1)


@dataclass(frozen=True)
class Options:
    """Settings of a server, with defaults for this machine."""

    config: VLLMConfig
    python: Path
    has_gpu: bool
    record_routing: bool = False
    """Whether responses include the chosen experts."""

    @property
    def dtype(self) -> str:
        if self.config.dtype != "auto":
            return self.config.dtype
        return "bfloat16" if self.has_gpu else "float32"

    def arguments(self, model: Path, socket: Path) -> list[str]:
        """Return the server's command-line arguments."""
        config = self.config
        options = {
            "--model": str(model),
            "--uds": str(socket),
            "--served-model-name": MODEL,
            # Log-probabilities of the distribution sampled from. vLLM's default are those at temperature 1.
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
            options["--max-model-len"] = str(config.context)
        cache = config.cache_gigabytes or (None if self.has_gpu else CPU_CACHE_GIGABYTES)
        if cache is not None:
            options["--kv-cache-memory-bytes"] = str(int(cache * 1e9))
        flags = ["--enable-scale-out"]  # the route that returns the version of each token
        if not self.has_gpu:
            # On the CPU, a seeded request whose prompt is split into chunks crashes the server.
            flags += ["--no-enable-chunked-prefill", "--enforce-eager"]
        if self.record_routing:
            flags.append("--enable-return-routed-experts")
        return [*(word for pair in options.items() for word in pair), *flags, *config.arguments]

    def environment(self, key: str) -> dict[str, str]:
        """Return the environment variables of the server: ours without those of the store, plus its own."""
        preset = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            # The trainer uses the same cores; by default vLLM would bind itself to the first ones.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        if not self.has_gpu:
            preset["TORCH_COMPILE_DISABLE"] = "1"  # compiling takes a minute at first, and needs a compiler
        environment = preset | variables()
        return environment | {
            "PYTHONPATH": str(INSIDE),
            "PATH": f"{self.python.parent}{os.pathsep}{environment.get('PATH', '')}",
            "VLLM_API_KEY": key,
            "VLLM_SERVER_DEV_MODE": "1",  # the routes that load weights
        }


class Server:
    """A server process. Its guardian terminates it when this process dies.

    Args:
        log: file to which its output is appended.
    """

    def __init__(self, options: Options, log: Path) -> None:
        # A socket address is limited to 107 bytes.
        parent = tempfile.gettempdir() if len(tempfile.gettempdir()) < 64 else "/tmp"
        self.folder = Path(tempfile.mkdtemp(prefix="trinity-vllm-", dir=parent))
        """Contains the socket and links to checkpoints. Accessible only to this user."""
        self.log = log
        self._options = options
        self._key = secrets.token_urlsafe(32)
        self._socket = self.folder / "socket"
        self._process: subprocess.Popen[bytes] | None = None
        self._said_before = 0
        """Bytes of the log written by earlier servers."""

    def start(self, model: Path) -> None:
        """Start the process with the model in a folder. It takes a while until it responds."""
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
        """Return the path of a new folder for links to a checkpoint."""
        return self.folder / f"model-{next(_numbers)}"

    def open_session(self) -> aiohttp.ClientSession:
        """Open a session whose connections allow as many waiting requests as are sampled concurrently."""
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
        """Stop the process and its children, and wait for their exit. Takes seconds."""
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(KILL_SECONDS)
            except subprocess.TimeoutExpired:
                logger.warning("vLLM's guardian does not exit: killed")
            # Also needed if the guardian was killed and left its group behind.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            _wait_for_group(process.pid)
        shutil.rmtree(self.folder, ignore_errors=True)

    def last_words(self) -> str:
        """Return the last log lines that contain an error, and the path of the log."""
        try:
            with self.log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                begun = self._said_before if self._said_before <= size else 0  # the log was truncated since
                file.seek(max(begun, size - READ_BYTES))
                lines = [
                    _PREFIX.sub("", line).strip()
                    for line in file.read().decode(errors="replace").splitlines()
                ]
        except OSError:
            lines = []
        telling = list(dict.fromkeys(line for line in lines if _SAYS_WHY.search(line)))
        shown = telling[-LINES:] or [line for line in lines if line][-LINES:] or ["no output"]
        return f"{' | '.join(line[:300] for line in shown)} (log: {self.log})"


def options_of(config: VLLMConfig, record_routing: bool = False) -> Options:
    """Return the settings of a server on this machine.

    Raises:
        ConfigError: if vLLM is not installed, or routing should be recorded without a GPU.
    """
    has_gpu = environment.has_gpu()
    if record_routing and not has_gpu:
        raise ConfigError(
            "explorer.record_routing: vLLM records the chosen experts only on a GPU, and this machine "
            "has none; leave it out, or use explorer: {engine: transformers}."
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
