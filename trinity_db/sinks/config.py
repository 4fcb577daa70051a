"""Where metrics are shown beside the table; what is left out is as the sink itself has it."""

from pathlib import Path

from pydantic import Field

from trinity_db.settings import Settings


class WandbConfig(Settings):
    """A run at Weights & Biases with the run's name. Its own environment variables apply, such as
    WANDB_MODE."""

    project: str | None = Field(None, min_length=1)
    """None: WANDB_PROJECT, or else uncategorized."""


class MlflowConfig(Settings):
    """A run of MLflow with the run's name."""

    tracking_uri: str | None = Field(None, min_length=1)
    """A tracking server, a database such as sqlite:///mlflow.db, or a folder (newer versions of MLflow
    accept a folder only with MLFLOW_ALLOW_FILE_STORE=true). None: MLFLOW_TRACKING_URI, or else MLflow's
    default."""
    experiment: str | None = Field(None, min_length=1)
    """None: MLFLOW_EXPERIMENT_NAME, or else Default."""


class MetricsConfig(Settings):
    """Places that show metrics. The store's metric table has them in any case."""

    tensorboard: Path | None = None
    """Folder for event files; the run makes a folder of its name there. Look with tensorboard --logdir
    FOLDER."""
    wandb: WandbConfig | None = None
    """Weights & Biases. {}: with its own settings."""
    mlflow: MlflowConfig | None = None
    """MLflow. {}: with its own settings."""
