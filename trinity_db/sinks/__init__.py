"""Where metrics are shown beside the table: TensorBoard, Weights & Biases, MLflow.

A sink is one class a place, a `Follower` brings it up to date from the table, and a `Mirror` does so in a
thread while a run goes on. Sinks read what every role has recorded, and know no role. Each keeps, at its
place, the last id that it has taken.

    config           which ones, as the configuration names them
    sink             what all of them are
    follow           from the table to a sink, at once or while a run goes on
    tensorboard      event files
    wandb            a run at Weights & Biases, or offline
    mlflow           a run at a tracking server, or in a folder
"""
