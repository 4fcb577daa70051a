"""Filter rows with Trinity-RFT's Data-Juicer service over HTTP.

Only the service needs Data-Juicer. Start it in an environment with trinity-rft and py-data-juicer:

    python -m trinity.service.data_juicer.server.server --port 5005

The service takes a table in Arrow's stream format, runs operators over it, and returns the remaining rows
with the operators' measurements.
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

from trinity_db.processors.lists.step import Answer, Context, Drop, step

STATS = "__dj__stats__"  # the column of the operators' measurements
BATCH = 64  # rows per request


@step(batch=BATCH)
class Juicer:
    """Drop rows that an operator filters out; the operators' measurements go to processing.detail.

    Operators that rewrite texts have no effect: a row keeps the tokens that the policy sampled.

    Args:
        operators: Data-Juicer's form {name: arguments}, in order. They read the response as `text`.
        url: Address of the service.
        seconds: Time limit of a request.
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
        self._wanted = {"operators": [{name: dict(options)} for name, options in operators.items()], "np": 1}
        self._session: str | None = None

    def __call__(self, response: Sequence[str]) -> Iterator[tuple[int, Answer | Drop]]:
        """Yield for each row whether it passed, with its measurements."""
        places = range(len(response))
        table = pa.table({"text": list(response), "place": list(places)})
        left = {row["place"]: row.get(STATS) for row in self._process(table).to_pylist()}
        if not left.keys() <= set(places):
            raise ValueError(f"{self._url} sends rows that it was not asked about")
        for index in places:
            yield index, Answer(None, detail=left[index]) if index in left else Drop("data_juicer")

    def _process(self, table: pa.Table) -> pa.Table:
        """Return the remaining rows of a table; recreate a session that the service lost."""
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
    """Return the last line of the service's error; the lines before are its stack."""
    message = error.read().decode(errors="replace")
    with suppress(ValueError, KeyError, TypeError):
        message = str(json.loads(message)["error"])
    return (message.strip().splitlines() or ["nothing"])[-1]
