"""The dialect of vLLM's server."""

import base64
import io
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from trinity_db.arrays.codec import check_routing
from trinity_db.errors import ConfigError
from trinity_db.explorer.engines.dialects.answers import (
    AT_ONCE,
    SEEDS,
    ask,
    check_confirmed,
    check_numbers,
    completion,
    field,
    sampling_options,
    scored,
)
from trinity_db.explorer.engines.dialects.dialect import (
    CONNECT_SECONDS,
    ServerUnavailable,
    ServerUnusable,
)
from trinity_db.explorer.engines.engine import Completion, Request, Scores

_HINTS: Mapping[str, str] = {
    "/inference/v1/generate": "start vLLM with --enable-scale-out",
    **dict.fromkeys(
        ("/weight_info", "/pause", "/collective_rpc", "/update_weight_version", "/resume"),
        "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment",
    ),
}


class VLLM:
    """vLLM's server, tested with 0.32.

    It needs `--enable-scale-out` for the route that returns the version of each token, and
    VLLM_SERVER_DEV_MODE=1 in its environment for the routes that load weights.

    Args:
        model: name under which the server serves the model; None: its only model.
        reload: method that each of the server's workers calls with `weights_path=`. A method of a worker
            extension may return {"refused": "why"} if it has changed nothing, or {"failed": "why"}.
        record_routing: whether responses must include the chosen experts. The server then needs
            `--enable-return-routed-experts`, which vLLM supports only on GPUs.
    """

    def __init__(
        self, model: str | None = None, reload: str = "reload_weights", *, record_routing: bool = False
    ) -> None:
        self._model = {} if model is None else {"model": model}
        self._reload = reload
        self._records_routing = record_routing

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
            **sampling_options(request, end_tokens),
            "max_tokens": request.max_new_tokens,
            "seed": request.seed % SEEDS,
            "top_k": 0,
            "logprobs": 0,
            "detokenize": bool(request.stop),
        }
        body = {**self._model, "token_ids": [*request.prompt_ids], "sampling_params": sampling}
        answer = await ask(session, "POST", url, "/inference/v1/generate", _HINTS, json=body)
        choice = field(url, answer, "choices", 0)
        content = (choice.get("logprobs") or {}).get("content") or []
        result = completion(
            url,
            choice.get("token_ids"),
            [entry.get("logprob") for entry in content],
            choice.get("weight_versions"),
            choice.get("finish_reason"),
        )
        if not self._records_routing:
            return result
        num_tokens = len(request.prompt_ids) + len(result.token_ids)
        return replace(result, routing=_routing(url, choice.get("routed_experts"), num_tokens))

    async def health(self, session: aiohttp.ClientSession, url: str) -> None:
        await ask(session, "GET", url, "/health", timeout=AT_ONCE)

    async def version(self, session: aiohttp.ClientSession, url: str) -> str:
        answer = await ask(session, "GET", url, "/weight_info", _HINTS, timeout=AT_ONCE)
        return str(field(url, answer, "weight_version"))

    async def load(
        self, session: aiohttp.ClientSession, url: str, path: Path, version: int, *, seconds: float
    ) -> None:
        # In this order, tokens before the pause use the old weights and tokens after it the new ones, over
        # the whole context: pausing discards the prefix cache.
        async def post(route: str, **options: Any) -> Any:
            limit = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
            return await ask(session, "POST", url, route, _HINTS, timeout=limit, **options)

        await post("/pause", params={"mode": "keep"})
        call = {"method": self._reload, "kwargs": {"weights_path": str(path)}}
        results = (await post("/collective_rpc", json=call) or {}).get("results", [])
        replies = [result for result in results if isinstance(result, dict)]
        refusals = [reply["refused"] for reply in replies if "refused" in reply]
        failures = [reply["failed"] for reply in replies if "failed" in reply]
        if failures or 0 < len(refusals) < len(results):  # workers now have different weights
            raise ServerUnavailable(f"{url}: could not load {path}: {[*failures, *refusals][0]}")
        if not refusals:
            await self.name(session, url, version)
        await post("/resume")
        if refusals:
            raise ConfigError(f"{url}: cannot load {path}: {refusals[0]}")

    async def name(self, session: aiohttp.ClientSession, url: str, version: int) -> None:
        """Label the server's current weights with a version, which its next tokens report."""
        await ask(
            session,
            "POST",
            url,
            "/update_weight_version",
            _HINTS,
            json={"new_version": str(version)},
            timeout=AT_ONCE,
        )
        check_confirmed(url, await self.version(session, url), version)

    async def score(self, session: aiohttp.ClientSession, url: str, token_ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each token of a prompt except the first, at temperature 1."""
        return self._logprobs(url, await self._prompt(session, url, token_ids, likeliest=0), token_ids)

    async def scores(self, session: aiohttp.ClientSession, url: str, token_ids: Sequence[int]) -> Scores:
        """Return the same as `score`, and the likeliest token at each place."""
        entries = await self._prompt(session, url, token_ids, likeliest=1)
        logprobs = self._logprobs(url, entries, token_ids)
        check_numbers(url, logprobs)
        likeliest = [
            max(((int(token), said["logprob"]) for token, said in entry.items()), key=itemgetter(1))
            for entry in entries
        ]
        return Scores(logprobs, likeliest)

    async def _prompt(
        self, session: aiohttp.ClientSession, url: str, token_ids: Sequence[int], *, likeliest: int
    ) -> list[dict[str, Any]]:
        """Return objects for each token of a prompt except the first: log-probabilities by tokens' ids.

        Args:
            likeliest: number of tokens that an object has besides the prompt's.
        """
        sampling = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": likeliest, "detokenize": False}
        body = {**self._model, "token_ids": [*token_ids], "sampling_params": sampling}
        answer = await ask(session, "POST", url, "/inference/v1/generate", _HINTS, json=body)
        entries = field(url, answer, "prompt_logprobs") or []
        return list(entries[1:])  # the first token has no entry

    @staticmethod
    def _logprobs(url: str, entries: list[dict[str, Any]], token_ids: Sequence[int]) -> list[float]:
        logprobs = [
            field(url, entry, str(token), "logprob")
            for token, entry in zip(token_ids[1:], entries, strict=False)
        ]
        return scored(url, logprobs, token_ids)


def _routing(url: str, encoded: Any, num_tokens: int) -> NDArray[Any]:
    """[n - 1, layers, e] Decode the experts of all tokens but the last, from a .npy file in base64. vLLM
    includes all layers of a model, with zeros for layers without experts."""
    if not isinstance(encoded, str):
        raise ServerUnusable(
            f"{url}: does not return the chosen experts; start vLLM with --enable-return-routed-experts, "
            "which needs a GPU, or leave out explorer.record_routing"
        )
    try:
        routing: NDArray[Any] = np.load(
            io.BytesIO(base64.b64decode(encoded, validate=True)), allow_pickle=False
        )
        if routing.dtype.kind in "iu" and routing.size and routing.min() >= 0 and routing.max() < 2**16:
            routing = routing.astype(np.uint8 if routing.max() < 2**8 else np.uint16)  # older servers: int32
        check_routing(routing, num_tokens)
    except ValueError as error:
        raise ServerUnusable(f"{url}: returns chosen experts in an unsupported format: {error}") from error
    if len(routing) != num_tokens - 1:
        raise ServerUnavailable(
            f"{url}: returned the chosen experts of {len(routing)} tokens, not of {num_tokens - 1}"
        )
    return routing
