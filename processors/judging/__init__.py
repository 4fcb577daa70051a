"""What the model judge is made of: the rubric, the question, the endpoint, and how an answer is read."""
