"""The learner: the policy that is trained, its optimizer, and the columns that a step reads."""
