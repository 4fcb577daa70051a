"""What the people who judged the pairs had in mind."""


def mean_digit(response: str) -> float:
    """The mean of the response's digits; what is no digit counts as 0."""
    return sum(int(one) for one in response if one.isdigit()) / max(len(response), 1)
