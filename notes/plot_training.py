#!/usr/bin/python3
"""Draws notes/figures/training.svg: the loss of step04's train.c, with each of its two kernels.

    notes/plot_training.py              draws it (`make curves` trains again, before)
    notes/plot_training.py --check      fails if it was drawn from another CSV, or by another program

The figure notes down the digest of both. (It is no picture that is compared, for other versions of
Matplotlib draw the same figure with other bytes.)
"""
import hashlib
import math
import sys

from cells import read_csv

FIGURE, CURVES = "notes/figures/training.svg", "notes/results/sim_training.csv"
VALUES = 16    # of train.c: who guesses has a loss of log 16


def source():
    sha = hashlib.sha256()
    for path in CURVES, __file__:
        with open(path, "rb") as file:
            sha.update(file.read())
    return f"{CURVES} {sha.hexdigest()}"


def draw():
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    matplotlib.rcParams.update({"svg.hashsalt": "training", "svg.fonttype": "none", "font.size": 11,
                                "font.family": "sans-serif"})
    rows = read_csv(CURVES)
    figure, axes = plt.subplots(figsize=(7.6, 3.8))
    for kernel, style, width in ("naive", "-", 4), ("recompute", "--", 1.4):
        loss = [float(row["loss"]) for row in rows if row["kernel"] == kernel]
        axes.plot(range(1, len(loss) + 1), loss, style, linewidth=width,
                  color="#f2a65a" if kernel == "naive" else "black", label=kernel)
    axes.axhline(math.log(VALUES), color="black", linewidth=0.8, linestyle=":")
    axes.text(len(loss), math.log(VALUES) + 0.05, "guessing: log 16", ha="right", fontsize=10)
    axes.set(xlabel="step", ylabel="loss", ylim=(0, 3.1), xlim=(0, len(loss) + 2))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(FIGURE, metadata={"Date": None, "Creator": None, "Description": source(),
                                     "Title": "The loss of one attention layer that learns to recall, with two kernels"})


def main(words):
    if words == ["--check"]:
        with open(FIGURE) as file:
            if source() not in file.read():
                sys.exit(f"{FIGURE}: drawn from another {CURVES}, or by another notes/plot_training.py: make plots")
    elif words:
        sys.exit("usage: notes/plot_training.py [--check]")
    else:
        draw()


if __name__ == "__main__":
    main(sys.argv[1:])
