"""The explorer: selects tasks, lets the policy attempt them, and writes the rollouts to the store."""
