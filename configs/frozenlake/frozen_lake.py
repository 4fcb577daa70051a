"""FrozenLake as a text environment with Gymnasium's two methods. It needs no package."""

import random

SIZE = 4
FROZEN = 0.8  # share of the cells
MOVES = {"L": (0, -1), "D": (1, 0), "R": (0, 1), "U": (-1, 0)}


class FrozenLake:
    """A lake with frozen cells F and holes H, which the policy A crosses from the top left to the goal G.

    The rules are those of Gymnasium's FrozenLake-v1 without slipping. The seed places the holes, so the
    attempts of a rollout group cross the same lake. An observation is the map, row by row.
    """

    def reset(self, *, seed, options):
        """Make a lake that can be crossed, with the policy at its start."""
        chance = random.Random(seed)
        while True:
            self.cells = ["F" if chance.random() < FROZEN else "H" for _ in range(SIZE * SIZE)]
            self.cells[0], self.cells[-1] = "S", "G"
            if can_be_crossed(self.cells):
                break
        self.place = 0
        return self.seen(), {}

    def step(self, action):
        """Make the move L, D, R or U; at the edge, and for any other text, the policy does not move."""
        self.place = moved(self.place, action)
        cell = self.cells[self.place]
        return self.seen(), float(cell == "G"), cell in "GH", False, {}

    def seen(self):
        """Return the map, with A at the policy's cell."""
        shown = [*self.cells]
        shown[self.place] = "A"
        return "/".join("".join(shown[start : start + SIZE]) for start in range(0, SIZE * SIZE, SIZE))


def moved(cell, action):
    """Return the number of the cell after a move."""
    row, column = divmod(cell, SIZE)
    down, right = MOVES.get(action, (0, 0))
    row, column = (min(max(index, 0), SIZE - 1) for index in (row + down, column + right))
    return row * SIZE + column


def can_be_crossed(cells):
    """Return whether a path over the ice leads from the first cell to the last."""
    reached, waiting = {0}, [0]
    while waiting:
        cell = waiting.pop()
        new = {moved(cell, action) for action in MOVES} - reached
        new = {cell for cell in new if cells[cell] != "H"}
        reached |= new
        waiting += new
    return len(cells) - 1 in reached
