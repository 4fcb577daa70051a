"""Jobs of a processor besides judging: archive, retention, priorities, synthesis, searches."""
