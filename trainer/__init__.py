"""The trainer: draws batches from the store, improves the policy, commits steps and publishes versions."""
