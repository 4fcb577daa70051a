"""Asks Trinity-RFT's service of Data-Juicer which rows to keep.

Data-Juicer is in the service's environment alone.

In an environment with trinity-rft and py-data-juicer:

    python -m trinity.service.data_juicer.server.server --port 5005

The service takes a table in Arrow's stream format, runs operators over it, and sends back the rows that are
left, with what the operators measured.
"""

import io
import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from trinity_db.processors.step import Answer, Context, Drop, step

STATS = "__dj__stats__"  # the column of what operators measure
BATCH = 64  # rows of one request


@step(batch=BATCH)
class Juicer:
    """Drops rows that an operator filters out. What operators measured stands in processing.detail.

    Operators that write other texts are of no use here: a row keeps the tokens that the policy sampled.

    Args:
        operators: As Data-Juicer has them: {name: its arguments}, in order. They read the response as `text`.
        url: Of the service.
        seconds: Longest time of a request.
    """

    def __init__(
        self,
        run: Context,
        *,
        operators: Mapping[str, Mapping[str, Any]],
        url: str = "http://localhost:5005",
        seconds: float = 600.0,
    ) -> None:
        self._url = url.rstrip("/")
        self._seconds = seconds
        self._wanted = {"operators": [{name: dict(given)} for name, given in operators.items()], "np": 1}
        self._session: str | None = None

    def __call__(self, response: Sequence[str]) -> Iterator[tuple[int, Answer | Drop]]:
        """Of each row whether it is left, and what was measured of it."""
        places = range(len(response))
        table = pa.table({"text": list(response), "place": list(places)})
        left = {row["place"]: row.get(STATS) for row in self._process(table).to_pylist()}
        if not left.keys() <= set(places):
            raise ValueError(f"{self._url} sends rows that it was not asked about")
        for place in places:
            yield place, Answer(None, detail=left[place]) if place in left else Drop("data_juicer")

    def _process(self, table: pa.Table) -> pa.Table:
        """What is left of a table. A session that the service lost, as after a restart, is made again."""
        if self._session is None:
            self._session = self._create()
        try:
            sent = self._send(table, self._session)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise RuntimeError(f"{self._url}: HTTP {error.code}: {_message(error)}") from error
            self._session = self._create()
            sent = self._send(table, self._session)
        with pa.ipc.open_stream(sent) as reader:
            return reader.read_all()

    def _create(self) -> str:
        body = json.dumps(self._wanted).encode()
        request = urllib.request.Request(f"{self._url}/create", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self._seconds) as answer:
                return str(json.load(answer)["session_id"])
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{self._url}: HTTP {error.code}: {_message(error)}") from error

    def _send(self, table: pa.Table, session: str) -> bytes:
        buffer = io.BytesIO()
        with pa.ipc.new_stream(buffer, table.schema) as writer:
            writer.write_table(table)
        border = secrets.token_hex(16)
        body = (
            f'--{border}\r\nContent-Disposition: form-data; name="session_id"\r\n\r\n{session}\r\n'
            f'--{border}\r\nContent-Disposition: form-data; name="arrow_data"; filename="dataset.arrow"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        body += buffer.getvalue() + f"\r\n--{border}--\r\n".encode()
        kind = {"Content-Type": f"multipart/form-data; boundary={border}"}
        request = urllib.request.Request(f"{self._url}/process_experience", body, kind)
        with urllib.request.urlopen(request, timeout=self._seconds) as answer:
            return bytes(answer.read())


def _message(error: urllib.error.HTTPError) -> str:
    """What the service says: the last line, as the others are its own stack."""
    said = error.read().decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):
        said = str(json.loads(said)["error"])
    return (said.strip().splitlines() or ["nothing"])[-1]
