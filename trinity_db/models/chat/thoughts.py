"""Separates the thoughts of a reasoning model from its answer."""

OPEN, CLOSE = "<think>", "</think>"


def after_thoughts(text: str, prompt: str = "") -> str:
    """Return the text after the last thought; nothing if that thought does not end.

    Args:
        text: A response.
        prompt: Its prompt. Some chat templates open the thought at the end of the prompt.
    """
    _, closed, rest = text.rpartition(CLOSE)
    is_open = OPEN in rest or (not closed and prompt.rstrip().endswith(OPEN))
    return "" if is_open else rest


def split(text: str, prompt: str = "") -> tuple[str, str]:
    """Return the thought with which a response begins, and the text after it, without white space between
    them. If the thought does not end, no text follows it.

    Args:
        text: A response.
        prompt: Its prompt. Some chat templates open the thought at the end of the prompt.
    """
    if not text.lstrip().startswith(OPEN) and not prompt.rstrip().endswith(OPEN):
        return "", text
    thought, _, rest = text.partition(CLOSE)
    return thought.strip().removeprefix(OPEN).strip(), rest.lstrip()
