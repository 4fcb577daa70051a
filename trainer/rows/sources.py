"""Checks of adopted rows: their tokens mean the same texts here, and an algorithm finds what it needs."""

import logging
from collections.abc import Mapping
from typing import Any

from trinity_db.config import ModelConfig
from trinity_db.database import Database
from trinity_db.errors import ConfigError
from trinity_db.models import hub, load_tokenizer, other_token, source_tokenizer
from trinity_db.store import offline, policies
from trinity_db.weights.recorded_places import RecordedPlaces

logger = logging.getLogger(__name__)


def check_tokenizers(database: Database, run_id: int, tokenizer: Any) -> None:
    """Compare the tokenizer of this run's model with those of the runs whose rows get their tokens now.

    A run whose tokenizer lies nowhere any more is not compared, and the log says so.

    Raises:
        ConfigError: a token of another run is another one here.
    """
    with database.transaction() as tx:
        sources = offline.unencoded_sources(tx, run_id)
    for source in sources:
        other = _tokenizer_of(database, source)
        if other is None:
            logger.warning(
                "run '%s' has no tokenizer here any more: make sure that this run's model has its tokens",
                source.name,
            )
        elif (token := other_token(other, tokenizer)) is not None:
            raise ConfigError(
                f"data: run '{source.name}' has other tokens than this run's model, such as {token!a:.40}; "
                f"start from a model with its tokens, as model: {{run: {source.name}}}, or take its texts: "
                f"trinity-db export {source.name} --as trajectories"
            )


def check_sampled(database: Database, run_id: int, needs: Mapping[str, str]) -> None:
    """Make sure that the rows of adopted groups have log-probabilities, if an algorithm needs them.

    Args:
        needs: columns that the algorithm reads, and which of its parts does.

    Raises:
        ConfigError: rows have none.
    """
    if "behaviour" not in needs:
        return
    with database.transaction() as tx:
        rows = offline.count_unsampled(tx, run_id)
    if rows:
        raise ConfigError(
            f"data: {rows} rows are texts without log-probabilities of a policy, which {needs['behaviour']} "
            "reads; take an algorithm that reads none, such as raft, kto or sft, or adopt a run or traces."
        )


def _tokenizer_of(database: Database, source: offline.Source) -> Any | None:
    """The tokenizer beside the weights of a run's newest version that is here, or of its starting model."""
    with database.transaction() as tx:
        versions = policies.with_checkpoint(tx, source.id)
    places = RecordedPlaces()
    for version in filter(places.allows_folder, versions):
        try:
            return load_tokenizer(version.checkpoint)
        except ConfigError:  # the files are gone, or on another machine
            continue
    model = ModelConfig.model_validate(source.model) if source.model else None
    if model is None or model.run is not None or (model.path is not None and hub.is_name(model.path)):
        return None  # a name that the store alone gives is not downloaded
    try:
        return source_tokenizer(model)
    except ConfigError:
        return None
