"""Arrays of experiences as bytes, and the Lance tables next to the store: archive and vectors."""
