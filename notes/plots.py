#!/usr/bin/python3
"""Draws the figures that show results, from the CSV files in notes/results/.

    notes/plots.py              draws notes/figures/bytes_against_M.svg and roofline.svg
    notes/plots.py --check      fails if a figure was drawn from another CSV, or by another program

A figure notes down the digest of both. (It is no picture that is compared, for other versions of
Matplotlib draw the same figure with other bytes.)
"""
import hashlib
import sys

from cells import read_csv

BYTES_AGAINST_M = "notes/figures/bytes_against_M.svg"
ROOFLINE = "notes/figures/roofline.svg"
SRAM = "notes/results/sim_sram.csv"
STEP02 = "notes/results/h200_fp32.csv"    # what step02 asks for; the simulator and the model say the same
STEP05 = "notes/results/h200_step05.csv"
CARDS = {48: "without\nopting in", 64: "sm_75", 99: "sm_86,\nsm_89", 163: "sm_80", 227: "sm_90"}    # KB


def digest(*paths):
    sha = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            sha.update(file.read())
    return sha.hexdigest()


def source(*paths):
    return f"{' '.join(paths)} {digest(*paths, __file__)}"


def asked(row):
    return int(row["asked_load"]) + int(row["asked_store"])


def asked_by_one_pass(N, d):
    """For one head."""
    [row] = [r for r in read_csv(STEP02) if (r["kernel"], r["seqlen_q"], r["head_dim"], r["causal"])
             == ("one-pass", str(N), str(d), "0")]
    return asked(row) / int(row["batch"]) / int(row["heads"])


def canvas(name, size):
    """Matplotlib's figure and axes; the file is the same every time."""
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    matplotlib.rcParams.update({"svg.hashsalt": name, "svg.fonttype": "none", "font.family": "sans-serif",
                                "font.size": 11})
    return plt.subplots(figsize=size)


def save(figure, axes, path, title, sources):
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": None, "Description": source(*sources), "Title": title})


def draw_bytes_against_M(path, sources):
    rows = read_csv(SRAM)
    N, d = int(rows[0]["seqlen_q"]), int(rows[0]["head_dim"])
    figure, axes = canvas("bytes against M", (7.6, 5))
    ends = [int(rows[0]["smem_limit"]), int(rows[-1]["smem_limit"])]
    for kernel, marker, factor in ("algorithm1", "s", 240), ("fused", "o", 160):
        points = [r for r in rows if r["kernel"] == kernel]
        M = [int(r["smem_limit"]) for r in points]
        axes.plot([m / 1024 for m in M], [asked(r) / 1e6 for r in points], marker, color="black", markersize=7,
                  fillstyle="none" if marker == "s" else "full", label=f"{kernel}: asked, = model")
        axes.plot([m / 1024 for m in ends], [factor * N**2 * d**2 / m / 1e6 for m in ends],
                  "-." if marker == "s" else "--", color="black", linewidth=1, label=f"{factor} N² d² / M")
    for text, size in {"all of one-pass": asked_by_one_pass(N, d),
                       "its S, written and read once": 8 * N**2,
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
        axes.text(size, 0.54, text, ha="center", va="bottom", fontsize=9.5)
    axes.legend(frameon=False, fontsize=10)
    save(figure, axes, path, f"Bytes asked of HBM against shared memory; N = {N}, d = {d}, one head", sources)


# Data sheets: TFLOP/s of dense 16-bit products, GB/s of HBM.
ROOFS = {"H200": (989, 4800, "-"), "H100 SXM": (989, 3350, "--"), "A100 SXM, 80 GB": (312, 2039, ":")}
FP32 = 67    # TFLOP/s of the H100's and the H200's fp32 units
LADDER = {"N": "4096", "d": "128"}


def spread(values, least):
    """Heights for labels: each at least `least` times the one below, as near as that to its value."""
    heights = []
    for value in values:    # they ascend
        heights.append(max(value, heights[-1] * least) if heights else value)
    return heights


def draw_roofline(path, sources):
    rows = [r for r in read_csv(STEP05) if (r["seqlen_q"], r["head_dim"], r["causal"], r["result"])
            == (LADDER["N"], LADDER["d"], "0", "ok")]
    rows.sort(key=lambda r: float(r["TFLOPs"]))
    figure, axes = canvas("roofline", (7.6, 5.6))
    left, right = 20, 40000
    for card, (peak, bandwidth, line) in ROOFS.items():
        ridge = peak * 1000 / bandwidth
        axes.plot([left, ridge, right], [left * bandwidth / 1000, peak, peak], line, color="black", linewidth=1.2,
                  label=f"{card}: {peak} TFLOP/s, {bandwidth / 1000:.3g} TB/s, ridge at {ridge:.0f}")
    axes.axhline(FP32, color="black", linewidth=0.7, linestyle="-.")
    axes.text(right, FP32 * 1.05, "fp32 units of H100, H200", ha="right", fontsize=9.5)
    for row, height in zip(rows, spread([float(r["TFLOPs"]) for r in rows], 1.3)):
        speed = float(row["TFLOPs"])
        operations = speed * float(row["time_us"]) * 1e6
        x = operations / asked(row), operations / (int(row["DRAM_read"]) + int(row["DRAM_write"]))
        axes.plot(x, [speed, speed], color="#999", linewidth=0.8)
        axes.plot(x[0], speed, "o", color="black", markersize=5)
        axes.plot(x[1], speed, "o", color="black", markersize=5, fillstyle="none")
        axes.annotate(f"{row['kernel']}, {row['dtype']}: {speed:.3g}", (x[1], speed), (3200, height), va="center",
                      fontsize=9.5, bbox={"color": "white", "pad": 0.5},
                      arrowprops={"arrowstyle": "-", "color": "#999", "linewidth": 0.6, "relpos": (0, 0.5)})
    axes.plot([], [], "o", color="black", markersize=5, label="operations per byte asked")
    axes.plot([], [], "o", color="black", markersize=5, fillstyle="none", label="operations per byte through DRAM")
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(3, 9000), ylabel="TFLOP/s",
             xlabel="operations per byte of HBM")
    ticks = [20, 50, 100, 200, 500, 1000, 2000]
    axes.set_xticks(ticks, ticks)
    axes.set_xticks([], minor=True)
    axes.set_yticks([5, 10, 20, 50, 100, 200, 500, 1000], [5, 10, 20, 50, 100, 200, 500, 1000])
    axes.set_yticks([], minor=True)
    axes.legend(frameon=False, fontsize=9.5, loc="upper left")
    save(figure, axes, path, f"The roofs of three cards, and step05's rungs on an H200; N = {LADDER['N']}, "
         f"d = {LADDER['d']}, no mask", sources)


FIGURES = {BYTES_AGAINST_M: (draw_bytes_against_M, (SRAM, STEP02)), ROOFLINE: (draw_roofline, (STEP05,))}


def main(words):
    if words == ["--check"]:
        for path, (_, sources) in FIGURES.items():
            with open(path) as file:
                if source(*sources) not in file.read():
                    sys.exit(f"{path}: drawn from another {' or '.join(sources)}, or by another notes/plots.py: make plots")
    elif words:
        sys.exit("usage: notes/plots.py [--check]")
    else:
        for path, (draw, sources) in FIGURES.items():
            draw(path, sources)


if __name__ == "__main__":
    main(sys.argv[1:])
