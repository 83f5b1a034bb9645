#!/usr/bin/python3
"""Draws the figures that show results, from the CSV files in notes/results/.

    notes/plots.py              draws notes/figures/bytes_against_M.svg
    notes/plots.py --check      fails if a figure was drawn from another CSV, or by another program

A figure notes down the digest of both. (It is no picture that is compared, for other versions of
Matplotlib draw the same figure with other bytes.)
"""
import hashlib
import sys

from cells import read_csv

BYTES_AGAINST_M = "notes/figures/bytes_against_M.svg"
SRAM = "notes/results/sim_sram.csv"
CARDS = {48: "without\nopting in", 64: "sm_75", 99: "sm_86,\nsm_89", 163: "sm_80", 227: "sm_90"}    # KB


def digest(*paths):
    sha = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            sha.update(file.read())
    return sha.hexdigest()


def source():
    return f"{SRAM} {digest(SRAM, __file__)}"


def draw_bytes_against_M(path):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    matplotlib.rcParams.update({"svg.hashsalt": "bytes against M", "svg.fonttype": "none",
                                "font.family": "sans-serif", "font.size": 11})
    rows = read_csv(SRAM)
    N, d = int(rows[0]["seqlen_q"]), int(rows[0]["head_dim"])
    figure, axes = plt.subplots(figsize=(7.6, 5))
    ends = [int(rows[0]["smem_limit"]), int(rows[-1]["smem_limit"])]
    for kernel, marker, factor in ("algorithm1", "s", 240), ("fused", "o", 160):
        points = [r for r in rows if r["kernel"] == kernel]
        M = [int(r["smem_limit"]) for r in points]
        asked = [int(r["asked_load"]) + int(r["asked_store"]) for r in points]
        axes.plot([m / 1024 for m in M], [a / 1e6 for a in asked], marker, color="black", markersize=7,
                  fillstyle="none" if marker == "s" else "full", label=f"{kernel}: asked, = model")
        axes.plot([m / 1024 for m in ends], [factor * N**2 * d**2 / m / 1e6 for m in ends],
                  "-." if marker == "s" else "--", color="black", linewidth=1, label=f"{factor} N² d² / M")
    for text, size in {"S, N × N, written and read once": 8 * N**2,
                       "Q, K, V, O, LSE once": 4 * (4 * N * d + N)}.items():
        axes.axhline(size / 1e6, color="black", linewidth=0.8, linestyle=":")
        axes.text(ends[0] / 1024, size / 1e6 * 1.04, text, fontsize=10)
    axes.set(xscale="log", yscale="log", xlabel="M, shared memory of a block (KB)",
             ylabel="bytes asked of HBM (MB)")
    axes.set_xticks([12, 20, 32, *CARDS], [12, 20, 32, *CARDS])
    axes.set_xticks([], minor=True)
    axes.set_yticks([1, 2, 5, 10, 20, 50, 100], [1, 2, 5, 10, 20, 50, 100])
    axes.set_yticks([], minor=True)
    axes.set_ylim(0.5, 150)
    for size, text in CARDS.items():
        axes.text(size, 0.54, text, ha="center", va="bottom", fontsize=8.5)
    axes.legend(frameon=False, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": None, "Description": source(),
                                   "Title": f"Bytes asked of HBM against shared memory; N = {N}, d = {d}, one head"})


def main(words):
    if words == ["--check"]:
        with open(BYTES_AGAINST_M) as file:
            if source() not in file.read():
                sys.exit(f"{BYTES_AGAINST_M}: drawn from another {SRAM}, or by another notes/plots.py: make plots")
    elif words:
        sys.exit("usage: notes/plots.py [--check]")
    else:
        draw_bytes_against_M(BYTES_AGAINST_M)


if __name__ == "__main__":
    main(sys.argv[1:])
