"""The learner: the policy that is trained, its optimizer, and what a step reads."""
