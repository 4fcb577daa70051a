"""The dialect of SGLang's server."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from trinity_db.explorer.engines.dialects.answers import (
    AT_ONCE,
    SEEDS,
    ask,
    check_confirmed,
    completion,
    field,
    one_line,
    sampling_options,
    scored,
)
from trinity_db.explorer.engines.dialects.dialect import CONNECT_SECONDS, ServerUnavailable
from trinity_db.explorer.engines.engine import Completion, Request


class SGLang:
    """SGLang's server, according to its documentation of autumn 2026.

    Older servers return only the version that ended a response. Such a response counts if it is also the
    server's version at the time of the request.
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
            **sampling_options(request, end_tokens),
            "max_new_tokens": request.max_new_tokens,
            "sampling_seed": request.seed % SEEDS,
            "top_k": -1,
        }
        body = {"input_ids": [*request.prompt_ids], "sampling_params": sampling, "return_logprob": True}
        answer = await ask(session, "POST", url, "/generate", json=body)
        about = field(url, answer, "meta_info")
        sampled = about.get("output_token_logprobs") or []
        reason = about.get("finish_reason")
        spans = about.get("weight_versions")
        if spans is None and sampled and about.get("weight_version") is not None:
            if about["weight_version"] != str(version):
                raise ServerUnavailable(
                    f"{url}: changed from version {version} to {about['weight_version']!r} during a "
                    "response, and does not return the version of each token"
                )
            spans = [{"version": about["weight_version"], "start": 0, "end": len(sampled)}]
        return completion(
            url,
            [entry[1] for entry in sampled] if sampled else answer.get("output_ids"),
            [entry[0] for entry in sampled],
            spans,
            reason.get("type") if isinstance(reason, dict) else reason,
        )

    async def health(self, session: aiohttp.ClientSession, url: str) -> None:
        await ask(session, "GET", url, "/health", timeout=AT_ONCE)

    async def version(self, session: aiohttp.ClientSession, url: str) -> str:
        answer = await ask(session, "GET", url, "/get_model_info", timeout=AT_ONCE)
        return str(field(url, answer, "weight_version"))

    async def load(
        self, session: aiohttp.ClientSession, url: str, path: Path, version: int, *, seconds: float
    ) -> None:
        # "retract" discards the KV cache of unfinished responses; "in_place" would keep old entries.
        async def post(route: str, body: Mapping[str, Any]) -> Any:
            limit = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_SECONDS)
            return await ask(session, "POST", url, route, json=body, timeout=limit)

        await post("/pause_generation", {"mode": "retract"})
        wanted = {"model_path": str(path), "weight_version": str(version), "flush_cache": True}
        answer = await post("/update_weights_from_disk", wanted)
        if not field(url, answer, "success"):
            raise ServerUnavailable(f"{url}: cannot load {path}: {one_line(str(answer.get('message')))}")
        check_confirmed(url, await self.version(session, url), version)
        await post("/continue_generation", {})

    async def score(self, session: aiohttp.ClientSession, url: str, token_ids: Sequence[int]) -> list[float]:
        sampling = {"max_new_tokens": 1, "temperature": 0.0}
        body = {
            "input_ids": [*token_ids],
            "sampling_params": sampling,
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        answer = await ask(session, "POST", url, "/generate", json=body)
        entries = field(url, answer, "meta_info", "input_token_logprobs") or []
        return scored(url, [field(url, entry, 0) for entry in entries[1:]], token_ids)
