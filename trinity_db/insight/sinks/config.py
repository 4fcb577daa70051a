"""Settings of the sinks for metrics. Missing settings keep the sink's own defaults."""

from pathlib import Path

from pydantic import Field

from trinity_db.config.base import Settings


class WandbConfig(Settings):
    """A run at Weights & Biases with the run's name. Its environment variables apply, such as WANDB_MODE."""

    project: str | None = Field(None, min_length=1)
    """Project. None: WANDB_PROJECT, or else uncategorized."""


class MlflowConfig(Settings):
    """An MLflow run with the run's name."""

    tracking_uri: str | None = Field(None, min_length=1)
    """A tracking server, a database such as sqlite:///mlflow.db, or a folder (newer versions of MLflow
    accept a folder only with MLFLOW_ALLOW_FILE_STORE=true). None: MLFLOW_TRACKING_URI, or else MLflow's
    default."""
    experiment: str | None = Field(None, min_length=1)
    """Experiment. None: MLFLOW_EXPERIMENT_NAME, or else Default."""


class MetricsConfig(Settings):
    """Destinations for metrics, in addition to the store's metric table."""

    tensorboard: Path | None = None
    """Folder for event files, in a subfolder with the run's name. View them with tensorboard --logdir
    FOLDER."""
    wandb: WandbConfig | None = None
    """Weights & Biases. {}: with default settings."""
    mlflow: MlflowConfig | None = None
    """MLflow. {}: with default settings."""
