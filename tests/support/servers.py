"""Servers without a model that speak as vLLM and SGLang do, so that a test can say what they answer.

A server says each prompt backwards, one token each `token_seconds`. It waits while it is paused, and samples
each token with the weights that it has then, as the real ones do.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """What both kinds have in common. Tests set its fields while it runs."""

    def __init__(self, key: str | None = None) -> None:
        self.key = key
        self.url = ""
        self.label = "default"
        """Of its weights."""
        self.loaded: list[tuple[str, str]] = []
        """Folders and versions, in the order in which they were loaded."""
        self.asked: list[dict[str, Any]] = []
        """Bodies of all requests for tokens."""
        self.sampled = 0
        """Tokens so far."""
        self.given_up = 0
        """Requests whose client left."""
        self.token_seconds = 0.0
        self.running = asyncio.Event()
        """Set unless it is paused."""
        self.running.set()
        self.refusal: Callable[[Any], web.Response | None] = lambda body: None
        """What a request for tokens gets in place of an answer."""
        self.change: Callable[[Any], None] = lambda answer: None
        """Spoils an answer."""
        self.is_deaf = False
        """Whether it cannot load weights."""
        self.is_healthy = True
        self.says: float | Sequence[float] | None = -1.0
        """The log-probability of each token of a prompt but the first, by its weights. The token 0 is the
        likeliest."""
        self.while_scored: Callable[[], Awaitable[None]] | None = None
        """Called before the log-probabilities of a prompt are returned."""
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def start(self) -> None:
        """On the port that it had before, if it is started again."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def die(self) -> None:
        """Every connection is cut; once."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        assert runner.server is not None
        for connection in list(runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await runner.cleanup()
        self.label = "default"  # of a process that starts anew
        self.running.set()

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "Unauthorized"}}, status=401)
        return await handler(request)

    async def _sampled(self, prompt: list[int], limit: int) -> tuple[list[int], list[dict[str, Any]]]:
        """Token ids, and the spans of their versions."""
        tokens, spans = prompt[::-1][:limit], list[dict[str, Any]]()
        try:
            for place in range(len(tokens)):
                await asyncio.sleep(self.token_seconds)
                await self.running.wait()
                if not spans or spans[-1]["version"] != self.label:
                    spans.append({"version": self.label, "start": place, "end": place})
                spans[-1]["end"] = place + 1
                self.sampled += 1
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return tokens, spans

    def _scores(self, tokens: list[int]) -> list[float | None]:
        """The log-probability of each of these tokens of a prompt."""
        if self.says is None or isinstance(self.says, float):
            return [self.says] * len(tokens)
        return [*self.says]

    async def _healthy(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_healthy else 503)


class VLLMServer(Server):
    """Routes of vLLM 0.32 with --enable-scale-out and VLLM_SERVER_DEV_MODE=1."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._healthy),
            web.post("/inference/v1/generate", self._generate),
            web.get("/weight_info", self._weight_info),
            web.post("/pause", self._pause),
            web.post("/collective_rpc", self._rpc),
            web.post("/update_weight_version", self._label),
            web.post("/resume", self._resume),
        ]

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (likeliest := body["sampling_params"].get("prompt_logprobs")) is not None:
            if self.while_scored is not None:
                await self.while_scored()
            tokens = body["token_ids"][1:]
            top = {"0": {"logprob": -0.25}} if likeliest else {}
            entries = [
                {str(token): {"logprob": said}, **top}
                for token, said in zip(tokens, self._scores(tokens), strict=True)
            ]
            said = None if self.says is None else [None, *entries]
            return web.json_response({"prompt_logprobs": said})
        self.asked.append(body)
        if (refusal := self.refusal(body)) is not None:
            return refusal
        tokens, spans = await self._sampled(body["token_ids"], body["sampling_params"]["max_tokens"])
        content = [{"token_id": token, "logprob": -0.5, "top_logprobs": []} for token in tokens]
        answer = {
            "choices": [
                {
                    "token_ids": tokens,
                    "logprobs": {"content": content},
                    "weight_versions": spans,
                    "finish_reason": "stop"
                    if tokens[-1] in body["sampling_params"]["stop_token_ids"]
                    else "length",
                }
            ]
        }
        self.change(answer)
        return web.json_response(answer)

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.label})

    async def _pause(self, request: web.Request) -> web.Response:
        assert request.query["mode"] == "keep"
        self.running.clear()
        return web.json_response({"status": "paused"})

    async def _rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert not self.running.is_set(), "weights change while responses are sampled"
        if self.is_deaf:
            return web.json_response({"error": {"message": "no such file"}}, status=500)
        if body["method"] == "checked" and "bad" in body["kwargs"]["weights_path"]:
            return web.json_response({"results": [{"refused": "no such tensor"}]})
        if body["method"] == "checked" and "half" in body["kwargs"]["weights_path"]:
            return web.json_response({"results": [{"failed": "the disk went away"}]})
        if body["method"] == "checked" and "uneven" in body["kwargs"]["weights_path"]:
            return web.json_response({"results": [{}, {"refused": "no such tensor"}]})
        self.loaded.append((body["kwargs"]["weights_path"], ""))
        return web.json_response({"results": [None]})

    async def _label(self, request: web.Request) -> web.Response:
        self.label = (await request.json())["new_version"]
        self.loaded[-1] = (self.loaded[-1][0], self.label)
        return web.json_response({"success": True})

    async def _resume(self, request: web.Request) -> web.Response:
        self.running.set()
        return web.json_response({"status": "resumed"})


class SGLangServer(Server):
    """Routes of SGLang by its documents; `names_spans` as servers since the summer of 2026."""

    names_spans = True

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/health", self._healthy),
            web.post("/generate", self._generate),
            web.get("/get_model_info", self._model_info),
            web.post("/pause_generation", self._pause),
            web.post("/update_weights_from_disk", self._update),
            web.post("/continue_generation", self._continue),
        ]

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "logprob_start_len" in body:
            tokens = body["input_ids"][1:]
            said = [[said, token, None] for said, token in zip(self._scores(tokens), tokens, strict=True)]
            return web.json_response({"meta_info": {"input_token_logprobs": [[None, 0, None], *said]}})
        self.asked.append(body)
        if (refusal := self.refusal(body)) is not None:
            return refusal
        assert body["return_logprob"] is True
        sampling = body["sampling_params"]
        tokens, spans = await self._sampled(body["input_ids"], sampling["max_new_tokens"])
        ends = tokens[-1] in sampling["stop_token_ids"]
        reason = (
            {"type": "stop", "matched": tokens[-1]} if ends else {"type": "length", "length": len(tokens)}
        )
        about: dict[str, Any] = {
            "finish_reason": reason,
            "output_token_logprobs": [[-0.5, token, None] for token in tokens],
            "weight_version": self.label,
        }
        if self.names_spans:
            about["weight_versions"] = spans
        answer = {"text": "", "output_ids": tokens, "meta_info": about}
        self.change(answer)
        return web.json_response(answer)

    async def _model_info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": "/models/policy", "weight_version": self.label})

    async def _pause(self, request: web.Request) -> web.Response:
        assert (await request.json())["mode"] == "retract"
        self.running.clear()
        return web.json_response({"status": "ok"})

    async def _update(self, request: web.Request) -> web.Response:
        assert not self.running.is_set(), "weights change while responses are sampled"
        body = await request.json()
        if self.is_deaf:
            return web.json_response({"success": False, "message": "no such file"}, status=400)
        self.label = body["weight_version"]
        self.loaded.append((body["model_path"], self.label))
        return web.json_response({"success": True, "message": "done", "num_paused_requests": 0})

    async def _continue(self, request: web.Request) -> web.Response:
        self.running.set()
        return web.json_response({"status": "ok"})


KINDS: dict[str, type[Server]] = {"vllm": VLLMServer, "sglang": SGLangServer}


@asynccontextmanager
async def started(kind: str, number: int = 1, **options: Any) -> AsyncIterator[list[Server]]:
    """Servers of one kind."""
    servers = [KINDS[kind](**options) for _ in range(number)]
    for server in servers:
        await server.start()
    try:
        yield servers
    finally:
        for server in servers:
            await server.die()
