"""What Trinity-RFT writes with its own code, as our imports read it."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from trinity.buffer.schema import sql_schema
from trinity.common.experience import EID, Experience

from tests.support.columns import read as record_of
from trinity_db.arrays.codec import Payload, decode
from trinity_db.data.files.readers import open_rows
from trinity_db.data.formats import FormatReader
from trinity_db.data.records.records import Kind
from trinity_db.data.rejects import Rejected

SAID = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]


def experiences() -> list[Experience]:
    """An attempt of one turn, and one of two steps, the second with a mask of its own."""
    torch.manual_seed(0)
    mask = torch.tensor([True, False, True, True])
    return [
        Experience(
            eid=EID(batch=3, task="a", run=run, step=step),
            tokens=torch.randint(0, 150_000, (length + 4,), dtype=torch.int32),
            logprobs=-torch.rand(4),
            prompt_length=length,
            reward=run + step / 4,
            info={"model_version": 5},
            metrics={"seconds": 0.5},
            action_mask=mask if step else None,
            messages=SAID,
            prompt_text="1+1?",
            response_text="2",
        )
        for run, step, length in ((0, 0, 2), (1, 0, 3), (1, 1, 9))
    ]


def store(path: Path, written: list[Experience]) -> Path:
    """A buffer as Trinity-RFT's own tables hold it."""
    engine = create_engine(f"sqlite:///{path}")
    rows, blobs = sql_schema._create_table_classes("buffer", "experience")
    sql_schema.Base.metadata.create_all(engine)
    with Session(engine) as session:
        for experience in written:
            row = rows.from_experience(experience)
            session.add(row)
            session.flush()
            session.add(blobs(id=row.id, experience_bytes=experience.serialize()))
        session.commit()
    engine.dispose()
    return path


def records(path: Path, kind: Kind) -> list[Any]:
    reader = FormatReader(None, kind)
    rows = [one for _, row in open_rows(path) if not isinstance(row, Rejected) for one in reader.read(row)]
    assert reader.name == "trinity-rft"
    return [record_of(kind, row) for row in rows if not isinstance(row, Rejected)]


def arrays(sequence: Any) -> Payload:
    return decode(sequence.codec, base64.b64decode(sequence.data), sequence.num_tokens)


def test_a_buffer_of_theirs_has_the_same_arrays_and_rewards_here(tmp_path: Path) -> None:
    written = experiences()
    traces = records(store(tmp_path / "buffer.db", written), "traces")
    assert [len(trace.sequences) for trace in traces] == [1, 2]
    sequences = [sequence for trace in traces for sequence in trace.sequences]
    for theirs, ours in zip(written, sequences, strict=True):
        found, trained = arrays(ours), theirs.action_mask.numpy()
        assert found.token_ids.tolist() == theirs.tokens.tolist()
        assert found.action_mask[theirs.prompt_length :].tolist() == trained.tolist()
        assert found.logprobs is not None
        assert found.logprobs.tobytes() == theirs.logprobs.numpy().astype(np.float32)[trained].tobytes()
        assert ours.reward == theirs.reward


def test_their_json_lines_are_attempts_here(tmp_path: Path) -> None:
    path = tmp_path / "experiences.jsonl"
    path.write_text("".join(json.dumps(one.to_dict()) + "\n" for one in experiences()))
    found = records(path, "trajectories")
    assert [(one.response, one.reward) for one in found] == [("2", 0.0), ("2", 1.0), ("2", 1.25)]
