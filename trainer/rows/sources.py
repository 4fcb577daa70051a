"""Checks of adopted rows: their tokens mean the same text here, and they have the columns of an algorithm."""

import logging
from collections.abc import Mapping
from typing import Any

from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.models import load_tokenizer, other_token, source_tokenizer
from trinity_db.postgres.connection import Database
from trinity_db.store import offline, policies
from trinity_db.weights.recorded_places import RecordedPlaces

logger = logging.getLogger(__name__)


def check_tokenizers(database: Database, run_id: int, tokenizer: Any) -> None:
    """Compare the tokenizer of this run's model with those of the runs whose rows are tokenised now.

    A run whose tokenizer no longer exists is skipped with a warning.

    Raises:
        ConfigError: if a token of another run differs here.
    """
    with database.transaction() as tx:
        sources = offline.unencoded_sources(tx, run_id)
    for source in sources:
        source_tokenizer = _tokenizer_of(database, source)
        if source_tokenizer is None:
            logger.warning(
                "run '%s' no longer has a tokenizer here: make sure that this run's model has its tokens",
                source.name,
            )
        elif (token := other_token(source_tokenizer, tokenizer)) is not None:
            raise ConfigError(
                f"data: run '{source.name}' has other tokens than this run's model, such as {token!a:.40}; "
                f"start from a model with its tokens, such as {{run: {source.name}}}, or import its texts: "
                f"trinity-db export {source.name} --as trajectories"
            )


def check_sampled(database: Database, run_id: int, needs: Mapping[str, str]) -> None:
    """Check that the rows of adopted groups have log-probabilities, if an algorithm needs them.

    Args:
        needs: Columns that the algorithm reads, each with the part that reads it.

    Raises:
        ConfigError: if rows have none.
    """
    if "behaviour" not in needs:
        return
    with database.transaction() as tx:
        rows = offline.count_unsampled(tx, run_id)
    if rows:
        raise ConfigError(
            f"data: {rows} rows are texts without log-probabilities of a policy, which {needs['behaviour']} "
            "reads; use an algorithm that reads none, such as raft, kto or sft, or adopt a run or traces."
        )


def _tokenizer_of(database: Database, source: offline.AdoptedSource) -> Any | None:
    """Return the tokenizer of a run's newest local version, or of its scratch model, if any."""
    with database.transaction() as tx:
        versions = policies.with_checkpoint(tx, source.id)
    places = RecordedPlaces()
    for version in filter(places.allows_folder, versions):
        try:
            return load_tokenizer(version.checkpoint)
        except ConfigError:  # the files are gone, or on another machine
            continue
    model = ModelConfig.model_validate(source.model) if source.model else None
    # A folder or a name on the Hub that only the store gives is not read.
    return None if model is None or model.scratch is None else source_tokenizer(model)
