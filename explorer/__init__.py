"""The explorer: picks tasks, lets the policy attempt them and writes the rollouts to the store."""
