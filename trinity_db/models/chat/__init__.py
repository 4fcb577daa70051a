"""Chat templates: from tasks to prompts, and from responses to the tokens that are trained."""
