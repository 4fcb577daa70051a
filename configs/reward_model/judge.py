"""The hidden preference behind the pairs: larger digits."""


def mean_digit(response: str) -> float:
    """Return the mean of the response's digits; other characters count as 0."""
    return sum(int(character) for character in response if character.isdigit()) / max(len(response), 1)
