"""Metrics in TensorBoard, Weights & Biases and MLflow, in addition to the metric table.

A sink is one class per destination, a `Follower` brings it up to date from the table, and a `Mirror` does so
in a thread during a run. Sinks read the metrics that roles have recorded, without access to the roles. Each
sink stores the last id that it has written, at its destination.

    config           settings of the sinks
    sink             interface of a sink
    follow           from the table to a sink, once or during a run
    tensorboard      event files
    wandb            a run at Weights & Biases, or offline
    mlflow           a run on a tracking server, or in a folder
"""
