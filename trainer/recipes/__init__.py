"""Recipes: named algorithms, the parser of `algorithm`, and the parts that they are composed of."""
