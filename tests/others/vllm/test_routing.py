"""What vLLM's own code writes of the experts that it chose is read; its server writes it on GPUs alone."""

import asyncio
import json
import subprocess
from pathlib import Path

import numpy as np

from tests.support.servers import started
from trinity_db.explorer.engines.dialects import VLLM, open_session
from trinity_db.explorer.engines.engine import Request
from trinity_db.explorer.engines.settings import VLLMConfig
from trinity_db.explorer.engines.vllm.server import Options

WRITES = """
import numpy as np
from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateTokensChoice
from vllm.utils.serial_utils import numpy2base64

experts = np.arange(24, dtype=np.uint8).reshape(4, 3, 2)
print(GenerateTokensChoice(index=0, routed_experts=numpy2base64(experts)).model_dump_json())
"""
PARSES = """
import sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

print(make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:]).enable_return_routed_experts)
"""


def said(python: Path, code: str, *arguments: str) -> str:
    """The last line that a program prints by the interpreter that has vLLM."""
    ended = subprocess.run([python, "-c", code, *arguments], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-1]


def test_a_choice_of_experts_as_vllm_writes_it_is_read(python: Path) -> None:
    choice = json.loads(said(python, WRITES))

    async def story() -> None:
        dialect = VLLM(record_routing=True)
        async with started("vllm") as (server,), open_session() as session:
            server.change = lambda answer: answer["choices"][0].update(
                routed_experts=choice["routed_experts"]
            )
            await dialect.load(session, server.url, Path("/runs/7"), 7, seconds=5)
            request = Request((4, 5, 6), 2)
            found = await dialect.generate(session, server.url, request, end_tokens=[2], version=7)
        np.testing.assert_array_equal(found.routing, np.arange(24).reshape(4, 3, 2))

    asyncio.run(story())


def test_vllm_knows_the_argument_by_which_it_is_asked_for_them(python: Path) -> None:
    options = Options(VLLMConfig(), python, has_gpu=True, record_routing=True)
    assert said(python, PARSES, *options.arguments(Path("model"), Path("socket"))) == "True"
