"""Child processes of steps, for code that may hang, exhaust memory or be malicious; they can be killed."""
