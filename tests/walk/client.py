"""A program that uses dockless until somebody kills it: the sandboxes of others by their ids, and one of its own.

client.py NUMBER IMAGE ID…
"""

from __future__ import annotations

import random
import sys
import traceback

from walk import keyed, verbs
from walk.lanes import Asyncio, Lane, Trio
from walk.verbs import CALM, REFUSED, Known, Try

from dockless import DEVNULL, PIPE, Sandbox, start

DEEDS = 6


def main(number: str, image: str, *ids: str) -> None:
    rng = random.Random(int(number))
    lane = rng.choice([Lane, Lane, Asyncio, Trio])()
    try:
        if rng.random() < 0.5:
            own = verbs.fresh("d")
            box: Sandbox[bytes] = start(image, verbs.command(own), id=own, labels={"walk": own}, remove=rng.random() < 0.5)
            deeds(rng, lane, [*ids, own])
            box.rm(force=True)
            return
        key = verbs.fresh("a")
        with Sandbox(image, verbs.command(key), id=key, labels={"walk": key}, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL) as held:
            deeds(rng, lane, [*ids, key, key])
            keyed.check(key, verbs.LOGGED, held.stdout.read(1000), whole=False)
    finally:
        lane.close()


def deeds(rng: random.Random, lane: Lane, ids: list[str]) -> None:
    for _ in range(DEEDS):
        what, n = rng.choice(sorted(CALM)), rng.randrange(1 << 16)
        try:
            box = Sandbox.open(rng.choice(ids))
            if what in verbs.ON_IMAGES and box.spec.image == verbs.HOST:
                continue
            known = Known(box, box.labels["walk"], box.spec.image, box.inspect()["foreground"], False)
            known.healthy = box.health is not None
            lane.start(lambda one, what=what, known=known, n=n: CALM[what](Try(known, one, False, n))).result()
            print("did", what, flush=True)
        except REFUSED as error:
            print("did", what, type(error).__name__, flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except REFUSED as error:
        print(repr(error))
    except Exception:
        traceback.print_exc()
        sys.exit(9)
