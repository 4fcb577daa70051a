"""One attempt at a task: the policy, its calls and conversations, and what is recorded."""
