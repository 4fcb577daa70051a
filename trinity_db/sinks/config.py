"""Where metrics are shown beside the table; what is left out is as the sink itself has it."""

from pathlib import Path

from pydantic import Field

from trinity_db.settings import Settings


class WandbConfig(Settings):
    """A run at Weights & Biases, named as the run is. Its own environment variables hold, as WANDB_MODE."""

    project: str | None = Field(None, min_length=1)
    """None: WANDB_PROJECT, or else uncategorized."""


class MlflowConfig(Settings):
    """A run of MLflow, named as the run is."""

    tracking_uri: str | None = Field(None, min_length=1)
    """A tracking server, a database as sqlite:///mlflow.db, or a folder, which newer versions of MLflow take
    with MLFLOW_ALLOW_FILE_STORE=true only. None: MLFLOW_TRACKING_URI, or else what MLflow takes."""
    experiment: str | None = Field(None, min_length=1)
    """None: MLFLOW_EXPERIMENT_NAME, or else Default."""


class MetricsConfig(Settings):
    """Metrics are in the store's metric table in any case; here, where else they are shown."""

    tensorboard: Path | None = None
    """Folder for event files, below it by the run's name: tensorboard --logdir FOLDER."""
    wandb: WandbConfig | None = None
    """Weights & Biases; {} takes its own settings."""
    mlflow: MlflowConfig | None = None
    """MLflow; {} takes its own settings."""
