"""How servers of other projects are asked for tokens over HTTP, and how their answers are read.

A dialect knows one kind of server and keeps nothing between calls. Whatever a server says, a caller sees one
form: a `Completion` with the log-probability and the policy version of each token, or one of these errors.

    ServerUnavailable   another server, or this one later, may answer
    ServerUnusable      this server cannot be a policy, until a person changes something
    RequestRefused      no server answers this request
    PromptTooLong       likewise, since the prompt is too long

Servers are asked for the log-probability under the distribution that each token was sampled from. For vLLM
this needs `--logprobs-mode processed_logprobs`; SGLang does so unless SGLANG_RETURN_ORIGINAL_LOGPROB is set.
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import aiohttp

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.explorer.engines.engine import Completion, Request
from trinity_db.prompts import PromptTooLong

CONNECT_SECONDS = 10.0
KEPT_SECONDS = 2.0  # of an idle connection; the servers close theirs after 5, and a request may cross that
ANSWER_SECONDS = 30.0  # for routes that answer at once; a server that is silent for so long hangs
NO_LOGPROB = -9999.0  # what vLLM writes for minus infinity and for "not a number"
ROUNDING = 1e-3  # by which a log-probability may exceed 0
SEEDS = 2**31  # servers keep seeds in integers of 32 or 64 bits
MESSAGE = 200  # characters of what a server says about an error

NEVER_A_POLICY = "such a server can be a judge or a teacher, never a policy"


class ServerUnavailable(TrinityError):
    """The server is gone, fails, or gave the request up: ask another one, or ask again later."""


class ServerUnusable(TrinityError):
    """The server answers in a way that can never be trained on, or refuses the key or the route."""


class RequestRefused(TrinityError):
    """The request is wrong for every server."""


class Dialect(Protocol):
    """One kind of server. `url` is its address without a path, as http://host:8000.

    Each method raises ServerUnavailable or ServerUnusable, with one line that begins with the address.
    """

    async def generate(
        self,
        session: aiohttp.ClientSession,
        url: str,
        request: Request,
        *,
        end_tokens: Collection[int],
        version: int,
    ) -> Completion:
        """Continue a prompt. Cancelling the caller closes the connection, by which the server gives up too.

        The response may go beyond a stop string: see `stops.cut_off`.

        Args:
            end_tokens: tokens that end a response; they are its last token.
            version: what the server confirmed last. If weights may have changed since, and the server does
                not say which token is of which version, its answer counts as ServerUnavailable.

        Raises:
            RequestRefused: the server calls the request wrong, or its log-probabilities are no numbers.
            PromptTooLong: the server calls the prompt too long.
        """

    async def health(self, session: aiohttp.ClientSession, url: str) -> None:
        """Return if the server can take requests."""

    async def version(self, session: aiohttp.ClientSession, url: str) -> str:
        """The label of the weights that the server samples with: a loaded version, or another text."""

    async def load(
        self, session: aiohttp.ClientSession, url: str, path: Path, version: int, *, seconds: float
    ) -> None:
        """Sample with the weights in a folder from the next token on, in responses that were begun too.

        The server pauses, reads the folder, confirms the version, and goes on. After an error it stays
        paused, since half of the weights may be new, until another load succeeds.

        Args:
            path: of the checkpoint's folder, as the server sees it.
            seconds: that reading the folder may take.

        Raises:
            ConfigError: the server refused the folder, and goes on with the weights of before.
        """

    async def score(self, session: aiohttp.ClientSession, url: str, token_ids: Sequence[int]) -> list[float]:
        """The log-probability of each token of a prompt but the first, at temperature 1."""


def open_session(key: str | None = None) -> aiohttp.ClientSession:
    """A session for any number of requests at once, of any length. It belongs to the running event loop.

    Args:
        key: goes into the header "Authorization" of every request.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_SECONDS),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        headers={"Authorization": f"Bearer {key}"} if key else None,
    )


def _sampling(request: Request, end_tokens: Collection[int]) -> dict[str, Any]:
    """The options that both kinds of servers call by the same names.

    Every option is named: a server fills in those that are missing from the model's own settings.
    """
    return {
        "temperature": request.temperature,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": sorted(end_tokens),
        "stop": [*request.stop],
        "skip_special_tokens": False,  # since a stop string may be one
    }


class VLLM:
    """vLLM's server, tried with 0.32.

    It needs `--enable-scale-out` for the route that names the version of each token, and
    VLLM_SERVER_DEV_MODE=1 in its environment for the routes that load weights.

    Args:
        model: the name under which the server serves the model; None: its only one.
        reload: what each of the server's workers calls with `weights_path=`. A function of a worker extension
            may answer with {"refused": "why"} before it has changed anything, or with {"failed": "why"}.
    """

    def __init__(self, model: str | None = None, reload: str = "reload_weights") -> None:
        self._model = {} if model is None else {"model": model}
        self._reload = reload

    async def generate(
        self,
        session: aiohttp.ClientSession,
        url: str,
        request: Request,
        *,
        end_tokens: Collection[int],
        version: int,
    ) -> Completion:
        sampling = {
            **_sampling(request, end_tokens),
            "max_tokens": request.max_new_tokens,
            "seed": request.seed % SEEDS,
            "top_k": 0,
            "logprobs": 0,
            "detokenize": bool(request.stop),
        }
        body = {**self._model, "token_ids": [*request.prompt_ids], "sampling_params": sampling}
        answer = await _ask(session, "POST", url, "/inference/v1/generate", _VLLM_HINTS, json=body)
        choice = _field(url, answer, "choices", 0)
        content = (choice.get("logprobs") or {}).get("content") or []
        return _completion(
            url,
            choice.get("token_ids"),
            [entry.get("logprob") for entry in content],
            choice.get("weight_versions"),
            choice.get("finish_reason"),
        )

    async def health(self, session: aiohttp.ClientSession, url: str) -> None:
        await _ask(session, "GET", url, "/health", timeout=_AT_ONCE)

    async def version(self, session: aiohttp.ClientSession, url: str) -> str:
        answer = await _ask(session, "GET", url, "/weight_info", _VLLM_HINTS, timeout=_AT_ONCE)
        return str(_field(url, answer, "weight_version"))

    async def load(
        self, session: aiohttp.ClientSession, url: str, path: Path, version: int, *, seconds: float
    ) -> None:
        # In this order, tokens before the pause are of the old weights and tokens after it of the new ones,
        # over the whole context: what was computed from the prefix is thrown away by the pause.
        async def post(route: str, **options: Any) -> Any:
            limit = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
            return await _ask(session, "POST", url, route, _VLLM_HINTS, timeout=limit, **options)

        await post("/pause", params={"mode": "keep"})
        call = {"method": self._reload, "kwargs": {"weights_path": str(path)}}
        results = (await post("/collective_rpc", json=call) or {}).get("results", [])
        said = [one for one in results if isinstance(one, dict)]
        refusals = [one["refused"] for one in said if "refused" in one]
        failures = [one["failed"] for one in said if "failed" in one]
        if failures or 0 < len(refusals) < len(results):  # then workers have different weights
            raise ServerUnavailable(f"{url}: could not load {path}: {[*failures, *refusals][0]}")
        if not refusals:
            await self.name(session, url, version)
        await post("/resume")
        if refusals:
            raise ConfigError(f"{url}: does not load {path}: {refusals[0]}")

    async def name(self, session: aiohttp.ClientSession, url: str, version: int) -> None:
        """Give the weights that the server has now a version, which its next tokens have."""
        await _ask(
            session,
            "POST",
            url,
            "/update_weight_version",
            _VLLM_HINTS,
            json={"new_version": str(version)},
            timeout=_AT_ONCE,
        )
        _confirmed(url, await self.version(session, url), version)

    async def score(self, session: aiohttp.ClientSession, url: str, token_ids: Sequence[int]) -> list[float]:
        """The log-probability of each token of a prompt but the first, at temperature 1."""
        sampling = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False}
        body = {**self._model, "token_ids": [*token_ids], "sampling_params": sampling}
        answer = await _ask(session, "POST", url, "/inference/v1/generate", _VLLM_HINTS, json=body)
        # The first token has none; each other has an object with one entry, named by its id.
        entries = (_field(url, answer, "prompt_logprobs") or [])[1:]
        found = [
            _field(url, one, str(token), "logprob")
            for token, one in zip(token_ids[1:], entries, strict=False)
        ]
        return _scored(url, found, token_ids)


class SGLang:
    """SGLang's server, by its documents of autumn 2026.

    Older servers name only the version that ended a response. Such an answer counts when that is also the
    version that the server had when it was asked.
    """

    async def generate(
        self,
        session: aiohttp.ClientSession,
        url: str,
        request: Request,
        *,
        end_tokens: Collection[int],
        version: int,
    ) -> Completion:
        sampling = {
            **_sampling(request, end_tokens),
            "max_new_tokens": request.max_new_tokens,
            "sampling_seed": request.seed % SEEDS,
            "top_k": -1,
        }
        body = {"input_ids": [*request.prompt_ids], "sampling_params": sampling, "return_logprob": True}
        answer = await _ask(session, "POST", url, "/generate", json=body)
        about = _field(url, answer, "meta_info")
        sampled = about.get("output_token_logprobs") or []
        reason = about.get("finish_reason")
        spans = about.get("weight_versions")
        if spans is None and sampled and about.get("weight_version") is not None:
            if about["weight_version"] != str(version):
                raise ServerUnavailable(
                    f"{url}: went from version {version} to {about['weight_version']!r} during a response, "
                    "and does not say which token is of which"
                )
            spans = [{"version": about["weight_version"], "start": 0, "end": len(sampled)}]
        return _completion(
            url,
            [entry[1] for entry in sampled] if sampled else answer.get("output_ids"),
            [entry[0] for entry in sampled],
            spans,
            reason.get("type") if isinstance(reason, dict) else reason,
        )

    async def health(self, session: aiohttp.ClientSession, url: str) -> None:
        await _ask(session, "GET", url, "/health", timeout=_AT_ONCE)

    async def version(self, session: aiohttp.ClientSession, url: str) -> str:
        answer = await _ask(session, "GET", url, "/get_model_info", timeout=_AT_ONCE)
        return str(_field(url, answer, "weight_version"))

    async def load(
        self, session: aiohttp.ClientSession, url: str, path: Path, version: int, *, seconds: float
    ) -> None:
        # "retract" gives up the keys and values of what is sampled; "in_place" would go on with old ones.
        async def post(route: str, body: Mapping[str, Any]) -> Any:
            limit = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
            return await _ask(session, "POST", url, route, json=body, timeout=limit)

        await post("/pause_generation", {"mode": "retract"})
        wanted = {"model_path": str(path), "weight_version": str(version), "flush_cache": True}
        answer = await post("/update_weights_from_disk", wanted)
        if not _field(url, answer, "success"):
            raise ServerUnavailable(f"{url}: does not load {path}: {_one_line(str(answer.get('message')))}")
        _confirmed(url, await self.version(session, url), version)
        await post("/continue_generation", {})

    async def score(self, session: aiohttp.ClientSession, url: str, token_ids: Sequence[int]) -> list[float]:
        sampling = {"max_new_tokens": 1, "temperature": 0.0}
        body = {
            "input_ids": [*token_ids],
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        answer = await _ask(session, "POST", url, "/generate", json=body)
        entries = _field(url, answer, "meta_info", "input_token_logprobs") or []
        return _scored(url, [_field(url, entry, 0) for entry in entries[1:]], token_ids)


_VLLM_HINTS: Mapping[str, str] = {
    "/inference/v1/generate": "start vLLM with --enable-scale-out",
    **dict.fromkeys(
        ("/weight_info", "/pause", "/collective_rpc", "/update_weight_version", "/resume"),
        "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment",
    ),
}
_AT_ONCE = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
_TOO_LONG = re.compile(r"context length|context window|maximum model length|longer than the max")
"""What servers say of a prompt that does not fit."""


async def _ask(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    route: str,
    hints: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """What a route answers, read as JSON; None if it answers nothing."""
    try:
        async with session.request(method, url + route, allow_redirects=False, **options) as answer:
            status, said = answer.status, await answer.read()
    except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
        raise ServerUnavailable(f"{url}: {_one_line(str(error)) or type(error).__name__}") from error
    if status == 200:
        try:
            return json.loads(said) if said.strip() else None
        except ValueError as error:
            raise ServerUnusable(f"{url}{route}: answers with something other than JSON") from error
    message = f"{url}{route}: HTTP {status}: {_message(said)}"
    if status >= 500 or status in (408, 425, 429):
        raise ServerUnavailable(message)
    if status in (400, 413, 422):
        raise (PromptTooLong if _TOO_LONG.search(message) else RequestRefused)(message)
    if status in (401, 403, 404, 405) and hints and route in hints:
        message += f" ({hints[route]}, or check the key)"
    raise ServerUnusable(message)


def _message(said: bytes) -> str:
    """What a server says about an error, in one of the usual forms."""
    text = said.decode(errors="replace")
    try:
        form = json.loads(text)
    except ValueError:
        return _one_line(text)
    for key in ("error", "message", "detail"):
        if isinstance(form, dict) and key in form:
            form = form[key]
    return _one_line(form if isinstance(form, str) else json.dumps(form))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MESSAGE]


def _field(url: str, answer: Any, *path: str | int) -> Any:
    """A field of an answer, by keys and places."""
    found = answer
    for key in path:
        try:
            found = found[key]
        except (KeyError, IndexError, TypeError) as error:
            names = ".".join(map(str, path))
            raise ServerUnusable(f"{url}: its answer has no {names}; is this another server?") from error
    return found


def _confirmed(url: str, label: str, version: int) -> None:
    if label != str(version):
        raise ServerUnavailable(f"{url}: was asked to load version {version}, and confirms {label!r}")


def _completion(
    url: str, token_ids: Any, logprobs: Sequence[Any], spans: Any, finish_reason: str | None
) -> Completion:
    """An answer in the one form that callers see."""
    if not isinstance(token_ids, list) or not all(type(token) is int for token in token_ids):
        raise ServerUnusable(f"{url}: answers without token ids; {NEVER_A_POLICY}")
    if finish_reason in ("abort", "error", None) or not token_ids:
        raise ServerUnavailable(f"{url}: gave the response up ({finish_reason or 'no finish reason'})")
    reason: Literal["stop", "length"]
    if finish_reason == "stop":
        reason = "stop"
    elif finish_reason == "length":
        reason = "length"
    else:
        raise ServerUnusable(f"{url}: ends a response by {finish_reason!r}, which is neither stop nor length")
    if len(logprobs) != len(token_ids) or not all(type(one) in (int, float) for one in logprobs):
        raise ServerUnusable(f"{url}: answers without the log-probability of each token; {NEVER_A_POLICY}")
    garbled = [one for one in logprobs if not NO_LOGPROB < one <= ROUNDING]  # also what is not a number
    if garbled:
        raise RequestRefused(f"{url}: gave a token the log-probability {garbled[0]}; its weights are garbled")
    return Completion(token_ids, [*logprobs], _versions(url, spans, len(token_ids)), reason)


def _scored(url: str, logprobs: list[Any], token_ids: Sequence[int]) -> list[float]:
    """The log-probabilities of all tokens but the first, if they are these."""
    if len(logprobs) != len(token_ids) - 1 or not all(type(one) in (int, float) for one in logprobs):
        raise ServerUnusable(f"{url}: does not say how likely each token of a prompt is")
    return logprobs


def _versions(url: str, spans: Any, length: int) -> list[int]:
    """The version of each token, from spans that say where each version's tokens begin and end."""
    if not spans:
        raise ServerUnusable(f"{url}: answers without the version of each token; {NEVER_A_POLICY}")
    versions: list[int] = []
    for span in spans:
        label = str(_field(url, span, "version"))
        if not (label.isascii() and label.isdecimal()):
            # Another load may give the weights a number.
            raise ServerUnavailable(
                f"{url}: sampled with version {label!r}, which is no whole number; {NEVER_A_POLICY}"
            )
        start, end = _field(url, span, "start"), _field(url, span, "end")
        if start != len(versions) or not isinstance(end, int):
            break
        versions += [int(label)] * (end - start)
    if len(versions) != length:
        raise ServerUnusable(f"{url}: names versions of {len(versions)} tokens, and has sampled {length}")
    return versions


DIALECTS: dict[str, type[VLLM] | type[SGLang]] = {"vllm": VLLM, "sglang": SGLang}
