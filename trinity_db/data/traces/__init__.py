"""OpenEnv's training traces, imported and exported."""
