"""The learner: the policy being trained, its optimizer, and the columns that a step reads."""
