"""What a run has written, taken away again."""

ROWS = (
    *("delete_batches", "delete_preferences", "delete_experiences", "delete_groups"),
    *("delete_pairings", "delete_task_stats", "delete_metrics", "delete_versions"),
)
"""Statements that take away all rows of a run but itself, its settings and its workers; in an order in which
none refers to a row that is gone."""

LAST_ID = 2**63 - 1
