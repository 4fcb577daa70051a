"""What programs ask over HTTP, as the dialects of the recording endpoint read it."""

from typing import Any

import pytest

from trinity_db.explorer.recording.dialects import responses
from trinity_db.explorer.recording.dialects.dialect import Refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b", "'text' must be an object"),
        ({"format": ["b"]}, "'format' must be an object"),
        ({"format": {"type": "json_schema"}}, "'text.format' must be text"),
    ],
)
def test_a_format_that_responses_cannot_have_is_refused(text: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        responses.read({"input": "a", "text": text})
