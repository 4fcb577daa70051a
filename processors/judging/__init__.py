"""Parts of the model judge: rubric, question, endpoint, and the parsing of answers."""
