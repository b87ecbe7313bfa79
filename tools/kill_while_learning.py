"""Kill a process that learns, at random moments, and look at the model it leaves each time.

    python tools/kill_while_learning.py MODEL --kills 100

Each time a child process takes the model in the folder MODEL, teaches it another class and saves
it; it is killed (SIGKILL) at a moment drawn from the time all that takes. A child that was done by
then is not counted. What lies in the folder must be the old model or the new one, whole. Prints
counts as JSON; fails if there was neither.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch

from cprompt import ContinualClassifier, CPromptError
from cprompt.classifier import model_folder
from cprompt.files import check_writable, write_json
from cprompt.research.record import environment


def photos(number: int) -> list[tuple[np.ndarray, str]]:
    rng = np.random.default_rng(number)
    images = rng.integers(0, 256, 3) * rng.uniform(0.8, 1, (4, 16, 16, 3))
    return [(image.astype(np.uint8), f"class {number}") for image in images]


def learn(model: Path, number: int) -> None:
    with model_folder.writing(model):
        if model_folder.exists(model):
            classifier = ContinualClassifier.load(model, device="cpu")
        else:
            classifier = ContinualClassifier(
                "test_vit",
                weights="random:0",
                image_size=32,
                training={"epochs": 1},
                device="cpu",
            )
        classifier.learn(photos(number)).save(model)


def in_child(model: Path, number: int) -> int:
    """Start learning in a process of its own, which costs no import; its id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            learn(model, number)
            status = 0
        finally:
            os._exit(status)
    return child


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("model", type=Path)
    options.add_argument("--kills", type=int, default=100)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--out", type=Path, help="also write the counts to this JSON file")
    args = options.parse_args()
    if args.out:
        check_writable(args.out)
    torch.set_num_threads(1)  # a forked child has no other thread
    rng = random.Random(args.seed)

    learn(args.model, 0)
    start = time.monotonic()
    _, status = os.waitpid(in_child(args.model, 1), 0)
    usual = time.monotonic() - start
    if status:
        print("learning failed without being killed")
        return 1

    counts = {"killed": 0, "old": 0, "new": 0, "neither": 0}
    number = 2
    while counts["killed"] < args.kills:
        before = ContinualClassifier.load(args.model, device="cpu")
        child = in_child(args.model, number)
        time.sleep(rng.uniform(0, usual))
        number += 1
        if os.waitpid(child, os.WNOHANG)[0]:  # it was done already: nobody was killed
            usual *= 0.95
            continue
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        counts["killed"] += 1
        try:
            after = ContinualClassifier.load(args.model, device="cpu")
            after.predict_proba([image for image, _ in photos(0)])
            is_old = after.model_id == before.model_id
            is_new = after.classes_ == [*before.classes_, f"class {number - 1}"]
            kind = "old" if is_old else "new" if is_new else "neither"
        except CPromptError as error:
            print(error)
            kind = "neither"
        counts[kind] += 1
    print(json.dumps(counts))
    if args.out:
        where = environment(torch.device("cpu"))
        write_json(args.out, {"seed": args.seed, **counts, "environment": where})
    return 1 if counts["neither"] else 0


if __name__ == "__main__":
    sys.exit(main())
