"""Checks of `trinity-db doctor` for the engine `vllm`."""

from trinity_db.errors import ConfigError
from trinity_db.explorer.engines.vllm import environment
from trinity_db.insight.checks.finding import Finding, fail, ok

WHAT = "engine vllm"


def findings() -> list[Finding]:
    """Check whether vLLM is installed where the engine looks for it, and can be imported. Takes seconds."""
    try:
        python = environment.find(None)
    except ConfigError:
        return [ok(WHAT, f"not installed; needed for explorer.engine vllm: {environment.SCRIPT}")]
    if (wrong := environment.problem(python)) is not None:
        return [fail(WHAT, f"{python}: {wrong}", f"delete its folder, and {environment.SCRIPT}")]
    return [ok(WHAT, f"{environment.installed_version(python)} in {python}")]
