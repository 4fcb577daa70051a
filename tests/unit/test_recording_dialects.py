"""What programs ask over HTTP, as the dialects of the recording endpoint read it."""

from typing import Any

import pytest

from trinity_db.explorer.config import RequestsConfig
from trinity_db.explorer.http.dialects.options import Refused, RequestContext
from trinity_db.explorer.http.dialects.responses import RESPONSES


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b", "'text' must be an object"),
        ({"format": ["b"]}, "'text.format' is"),
        ({"format": {"type": "json_schema"}}, "'text.format' is"),
    ],
)
def test_a_format_that_responses_cannot_have_is_refused(text: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        RESPONSES.read({"input": "a", "text": text}, RequestContext(RequestsConfig(response_format="strict")))
