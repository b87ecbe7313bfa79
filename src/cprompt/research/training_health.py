"""Whether training did its work: what hardly moved, and losses that grew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cprompt.training.movement import Movement

INERT = 0.01
"""A group that turns by less than this share of its length in a task was not trained.

CODA-Prompt's prompts turn by 0.05 % under an optimiser that does not suit them, and by 17 % in ten
steps under their own. A group with a lower rate (`lr_scale`) is expected to go less far.
"""
GREW = 0.1
"""A loss whose last epoch is above the first one's by more than this share of it diverged."""


def is_inert(movement: Movement) -> bool:
    """Whether a group hardly moved, apart from the scaling that weight decay does."""
    return movement.relative_turn < INERT * min(1.0, movement.lr_scale)


def loss_grew(epochs: Sequence[Mapping[str, float]]) -> bool:
    """Whether the sum of the loss terms was higher in a task's last epoch than in its first."""
    if len(epochs) < 2:
        return False
    first, last = (sum(terms.values()) for terms in (epochs[0], epochs[-1]))
    return last - first > GREW * abs(first)


def training_warnings(
    movement: Sequence[Mapping[str, Movement]], losses: Sequence[Sequence[Mapping[str, float]]]
) -> dict[str, str]:
    """What looks wrong in the training of all tasks so far, by what it is about, for a person.

    >>> still = {"prompts": Movement(began=10.0, moved=0.02, turned=0.001)}
    >>> print(training_warnings([still, still], [])["prompts"])
    prompts hardly moved in 2 of 2 tasks: by 0.01 % at most, not counting weight decay; the \
learning rate or the optimiser does not suit them
    """
    found = {}
    for group in dict.fromkeys(group for task in movement for group in task):
        trained = [task[group] for task in movement if group in task]
        if inert := [m for m in trained if is_inert(m)]:
            most = max(m.relative_turn for m in inert)
            found[group] = (
                f"{group} hardly moved in {len(inert)} of {len(trained)} tasks: by "
                f"{100 * most:.2g} % at most, not counting weight decay; the learning rate or the "
                "optimiser does not suit them"
            )
    if grew := [task for task, epochs in enumerate(losses) if loss_grew(epochs)]:
        numbers = ", ".join(str(task + 1) for task in grew)
        found["loss"] = (
            f"the loss grew from the first epoch to the last in task {numbers}: training diverged; "
            "lower the learning rate"
        )
    return found
