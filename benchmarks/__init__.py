"""How long dockless takes, beside the peers that are installed and beside a C program that does the same by hand.

::

    run.py         the command line: which measurements, how many rounds, where the JSON goes
    measures.py    the measurements: each makes contenders, lets them race, returns a table
    race.py        rounds in which every contender runs once, in random order; medians, p90, ratios of pairs
    contender.py   a process that makes one start per line of input and answers with its own clock's nanoseconds
    worker.py        … in Python: dockless from a process of any size, or any command as a whole process
    floor.c          … in C: the same system calls, by hand
    peers.py       crun, bwrap, podman …: found or named, and what they are asked to do
    scene.py       the image, its copies for the peers, a home of our own; all below one directory that goes at the end
    machine.py     what it ran on, and how noisy it was
    report.py      tables and JSON

    images.py      the same for images: how fast they come into place
    bench_image.py   the image for it, made from package registries and kept
    odd_layers.py    images of one extreme layer
    image_measures.py, image_peers.py, image_runs.py, image_worker.py, registry.py    as above, for whole processes and fresh directories
    image_limits.py  each stage alone, and what the machine can do (creations.c)
    image_verdicts.py    sample images, one by one: dockless, skopeo, umoci

    crash_matrix.py, crash_pull.py    kill -9 and full disks at random moments
    submit_rate.py    the queue: durable submits
    drain_rate.py     the queue: jobs that do nothing, and what each costs
    scheduling.py     the policy on public traces: packing.py on many nodes, replay_traces.py waiting times

Nothing here is a test: no figure makes it fail. Times of different contenders are compared only within a round.
"""
