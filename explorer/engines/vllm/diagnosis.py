"""What `trinity-db doctor` says of the engine `vllm`."""

from trinity_db.diagnosis.finding import Finding, fail, ok
from trinity_db.errors import ConfigError
from trinity_db.explorer.engines.vllm import environment

WHAT = "engine vllm"


def findings() -> list[Finding]:
    """Whether vLLM is installed where the engine looks for it, and can be imported. This takes seconds."""
    try:
        python = environment.find(None)
    except ConfigError:
        return [ok(WHAT, f"not installed; runs with explorer.engine vllm need it: {environment.SCRIPT}")]
    if (wrong := environment.problem(python)) is not None:
        return [fail(WHAT, f"{python}: {wrong}", f"delete its folder, and {environment.SCRIPT}")]
    return [ok(WHAT, f"{environment.installed_version(python)} in {python}")]
