#!/usr/bin/python3
"""Draws the figures that show results, from the CSV files in notes/results/.

    notes/plots.py              draws them: the names are in FIGURES; copies as PNG go to build/figures/
    notes/plots.py --check      fails if a figure was drawn from another CSV, or by another program
    notes/plots.py --ladder     prints what ladder.svg shows, and the bytes, as README.md quotes it; with 16384 behind
                                it, at that length

A figure notes down the digest of both. (It is no picture that is compared, for other versions of
Matplotlib draw the same figure with other bytes.)
"""
import glob
import hashlib
import math
import os
import statistics
import sys

from cells import bytes_text, choose, read_csv

BYTES_AGAINST_M = "notes/figures/bytes_against_M.svg"
ROOFLINE = "notes/figures/roofline.svg"
LADDER_FIGURE = "notes/figures/ladder.svg"
BYTES_AGAINST_N = "notes/figures/bytes_against_N.svg"
WORKSPACE = "notes/figures/workspace_against_N.svg"
FP8_ERROR = "notes/figures/fp8_error.svg"
TRAINING_FIGURE = "notes/figures/training.svg"
SRAM = "notes/results/sim_sram.csv"
TRAINING = "notes/results/sim_training.csv"
LADDER = "notes/results/h200_ladder.csv"          # all rungs, at two lengths
BESIDE = "notes/results/h200_ladder_peers.csv"    # those in 16 and 8 bits, in turns with others' kernels
STEP02 = "notes/results/h200_fp32.csv"    # what step02 asks for; the simulator and the model say the same
STEP05 = "notes/results/h200_step05.csv"
STEP06 = "notes/results/h200_step06.csv"
BACKWARD = "notes/results/h200_backward.csv"
ACCURACY = {"simulator": "notes/results/sim_fp8_accuracy.csv", "H200": "notes/results/h200_fp8_accuracy.csv"}
PNG = "build/figures"
CARDS = {48: "without\nopting in", 64: "sm_75", 99: "sm_86,\nsm_89", 163: "sm_80", 227: "sm_90"}    # KB


def digest(*paths):
    """Of all that is in the files but when it was measured: the same numbers again make the same figure."""
    sha = hashlib.sha256()
    for path in paths:
        if path.endswith(".csv"):
            rows = [{name: row[name] for name in row if name not in ("date", "commit")} for row in read_csv(path)]
            sha.update(repr(rows).encode())
        else:
            with open(path, "rb") as file:
                sha.update(file.read())
    return sha.hexdigest()


def source(*paths):
    return f"{' '.join(paths)} {digest(*paths, __file__)}"


def total(row, prefix):
    """Of all ways to the memory; FP8's kernels and Hopper's copies have columns of their own."""
    return sum(int(row[column]) for column in row if column.startswith(prefix) and row[column])


def asked(row):
    return total(row, "asked_")


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
    os.makedirs(PNG, exist_ok=True)
    figure.savefig(os.path.join(PNG, os.path.basename(path).replace(".svg", ".png")), dpi=160)


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


# ---- all rungs ------------------------------------------------------------------------------------

# One colour and one mark for each step, in all figures that have several.
STEPS = {"00": ("#4d4d4d", "o"), "01": ("#e69f00", "s"), "02": ("#56b4e9", "^"), "03": ("#009e73", "D"),
         "04": ("#cc79a7", "v"), "05": ("#d55e00", "P"), "06": ("#0072b2", "X")}


def number_of(row):
    return row["step"][4:6]


def rungs(N, causal, what="forward"):
    """The rows of all rungs, in the ladder's order: at d = 128, or, of one that lacks it, at d = 64. Those that are
    there for their backward have the forward of another rung, which is left out. With the rung's speed and time."""
    found = {}
    for d in 128, 64:
        for row in choose(LADDER, f"head_dim={d} seqlen_q={N} causal={causal} pass={what} result=ok"):
            if what == "backward" or row["kernel"] not in ("recompute", "fa2-deterministic", "fa2-fused"):
                found.setdefault(row["kernel"], row)
    own, _ = speeds(N, causal, what)
    for row in found.values():
        row["speed"] = own.get(row["kernel"], float(row["TFLOPs"])) if row["head_dim"] == "128" else float(row["TFLOPs"])
        row["time"] = float(row["time_us"]) * float(row["TFLOPs"]) / row["speed"]
    return sorted(found.values(), key=lambda row: (number_of(row), int(row["rung"])))


PEERS = {"fa2": "FlashAttention-2", "cudnn": "cuDNN", "matmul": "matrix product"}


def speeds(N, causal, what="forward"):
    """TFLOP/s at d = 128 of the rungs that were measured in turns with others' kernels, and of those, by name.
    Medians: of a rung over its rounds, of a peer over the rungs, too."""
    at = {"head_dim": "128", "seqlen": str(N), "causal": str(causal), "pass": what}
    own, others = {}, {}
    for row in read_csv(BESIDE):
        if all(row[name] == value for name, value in at.items()):
            own.setdefault(row["kernel"], []).append(float(row["TFLOPs"]))
            others.setdefault(PEERS[row["peer"]], []).append(float(row["peer_TFLOPs"]))
    return ({name: statistics.median(own[name]) for name in own},
            {name: statistics.median(others[name]) for name in PEERS.values() if name in others})


def of_cudnn(N, causal, what):
    """By kernel: the median of the ratios to cuDNN, each of two measurements one right after the other."""
    rows = choose(BESIDE, f"head_dim=128 seqlen={N} causal={causal} pass={what} peer=cudnn")
    return {row["kernel"]: f"{float(row['ratio']):.2f}" for row in rows}


def lines_of(step, kernel):
    """Of the file that the rung is in."""
    for path in sorted(glob.glob(f"{step}/*.cu")):
        with open(path) as file:
            text = file.read()
        if f'"{kernel}"' in text:
            return text.count("\n")
    raise ValueError(f"{step} has no kernel {kernel}")


def share(speed, product):
    return f"{100 * speed / product:.{0 if speed > product / 10 else 1}f}%"


def digits(speed):
    return f"{speed:.3g}" if speed < 999.5 else f"{speed:.0f}"


COLUMNS = "{:6} {:17} {:5} {:>5} {:>8} {:>8} {:>10} {:>8} {:>8} {:>8} {:>8} {:>8} {:>9}"


def line(*cells):
    print(COLUMNS.format(*cells).rstrip())


def milliseconds(us):
    return f"{us / 1000:.3g} ms" if us < 999.5e3 else f"{us / 1e6:.3g} s"


def line_of_rung(row, product, beside, long):
    name = row["kernel"] + (f", d {row['head_dim']}" if row["head_dim"] != "128" else "")
    line(row["step"][:6], name, row["dtype"], lines_of(row["step"], row["kernel"]), milliseconds(row["time"]),
         digits(row["speed"]), share(row["speed"], product),
         beside.get(row["kernel"], "") if row["head_dim"] == "128" else "", long.get(row["kernel"], ""), bytes_text(asked(row)),
         bytes_text(total(row, "L2_")), bytes_text(total(row, "DRAM_")), bytes_text(int(row["workspace"])))


def ladder(N=4096, other=16384):
    """Forward, then backward, with the speeds of another length beside; an empty cell was not measured."""
    first = rungs(N, 0)[0]
    print(f"{first['device']}, B {first['batch']}, H {first['heads']}, N {N}, d 128, no mask")
    for what, work in ("forward", 4), ("backward", 10):
        rows, others = rungs(N, 0, what), speeds(N, 0, what)[1]
        far = {row["kernel"]: digits(row["speed"]) for row in rungs(other, 0, what) if row["head_dim"] == "128"}
        far |= {name: digits(speed) for name, speed in speeds(other, 0, what)[1].items()}
        print()
        line("", what, "type", "lines", "time", "TFLOP/s", "of product", "of cuDNN", f"N {other}", "asked", "L2", "DRAM", "workspace")
        for row in rows:
            line_of_rung(row, others["matrix product"], of_cudnn(N, 0, what), far)
        for name, speed in others.items():
            operations = work * 128 * N**2 * int(first["batch"]) * int(first["heads"])
            time = "" if name == "matrix product" else milliseconds(operations / speed / 1e6)
            line("peer", name, "bf16", "", time, digits(speed), share(speed, others["matrix product"]), "",
                 far[name], "", "", "", "")
    print(f"\n{of_the_model()}")


def of_the_model():
    """What the card's counters say of the rungs' models, over all rows of the file."""
    rows = choose(LADDER, "result=ok")
    other = [row for row in rows if any(row[name.replace("model", "asked")] != row[name]
                                        for name in row if name.startswith("model_"))]
    return f"asked, load and store and atomic, by threads and by TMA: as the model says, to the byte, in " \
           f"{len(rows) - len(other)} of {len(rows)} rows"


def draw_ladder(path, sources):
    rows, causal = rungs(4096, 0), {row["kernel"]: row for row in rungs(4096, 1)}
    figure, axes = canvas("ladder", (7.6, 7.2))
    for y, row in enumerate(rows):
        colour, _ = STEPS[number_of(row)]
        axes.barh(y, row["speed"], 0.7, color=colour, edgecolor="black", linewidth=0.6)
        if row["kernel"] in causal:
            axes.plot(causal[row["kernel"]]["speed"], y, "d", color="black", markersize=5, fillstyle="full",
                      markerfacecolor="white")
        axes.text(row["speed"] + 12, y, digits(row["speed"]), va="center", fontsize=9,
                  bbox={"color": "white", "pad": 0.6})
    for (name, speed), style in zip(speeds(4096, 0)[1].items(), (":", "--", "-")):
        axes.axvline(speed, color="black", linewidth=1.1, linestyle=style, label=f"{name}: {digits(speed)}", zorder=0)
    axes.plot([], [], "d", color="black", markersize=5, markerfacecolor="white", label="with a causal mask")
    names = [f"{number_of(r)} {r['kernel']}, {r['dtype']}" + (", d 64" if r["head_dim"] == "64" else "") for r in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=9.5)
    axes.tick_params(axis="y", length=0)
    axes.set(xlabel="TFLOP/s", xlim=(0, 960), ylim=(len(rows) - 0.4, -0.6))
    axes.legend(frameon=False, fontsize=9.5, loc="upper left", bbox_to_anchor=(0.375, 1),
                title="bars, and lines in bf16: no mask", title_fontsize=9.5, alignment="left")
    axes.get_legend().set(zorder=3, frame_on=True)
    axes.get_legend().get_frame().set(facecolor="white", edgecolor="none", alpha=1)
    save(figure, axes, path, "TFLOP/s of all rungs on an H200; N = 4096, d = 128, 16,384 tokens of 16 heads", sources)


# ---- the roofline ---------------------------------------------------------------------------------

# Data sheets: TFLOP/s of dense 16-bit products, GB/s of HBM.
ROOFS = {"H200": (989, 4800, "-"), "H100 SXM": (989, 3350, "--"), "A100 SXM, 80 GB": (312, 2039, ":")}
FP32 = 67    # TFLOP/s of the H100's and the H200's fp32 units
UNDER_THE_ROOF = ("naive", "blocked", "one-pass", "fused-wide", "query-tiles", "swizzled", "fa2", "fa3-optimistic")


def spread(values, least):
    """Heights for labels: each at least `least` times the one below, as near as that to its value."""
    heights = []
    for value in values:    # they ascend
        heights.append(max(value, heights[-1] * least) if heights else value)
    return heights


def draw_roofs(axes, left, right):
    for card, (peak, bandwidth, line) in ROOFS.items():
        ridge = peak * 1000 / bandwidth
        axes.plot([left, ridge, right], [left * bandwidth / 1000, peak, peak], line, color="black", linewidth=1.2,
                  label=f"{card}: {peak} TFLOP/s in 16 bits, {bandwidth / 1000:.3g} TB/s, ridge at {ridge:.0f}")
    axes.axhline(FP32, color="black", linewidth=0.7, linestyle="-.")
    axes.text(left * 1.2, FP32 * 1.08, "fp32 units of H100, H200", fontsize=9.5)


def draw_under_the_roof(axes, rows, labels_at):
    for row, height in zip(rows, spread([row["speed"] for row in rows], 1.5)):
        colour, mark = STEPS[number_of(row)]
        speed, operations = row["speed"], row["speed"] * row["time"] * 1e6
        x = operations / asked(row), operations / total(row, "DRAM_")
        axes.plot(x, [speed, speed], color=colour, linewidth=1)
        for at, fill in zip(x, (colour, "white")):
            axes.plot(at, speed, mark, color=colour, markeredgecolor="black", markerfacecolor=fill, markersize=6)
        axes.annotate(f"{number_of(row)} {row['kernel']}, {row['dtype']}: {digits(speed)}", (max(x), speed),
                      (labels_at, height), va="center", fontsize=9.5, bbox={"color": "white", "pad": 0.5},
                      arrowprops={"arrowstyle": "-", "color": "#999", "linewidth": 0.6, "relpos": (0, 0.5)})


def draw_roofline(path, sources):
    rows = sorted((row for row in rungs(4096, 0) if row["kernel"] in UNDER_THE_ROOF), key=lambda row: row["speed"])
    figure, axes = canvas("roofline", (7.6, 5.8))
    left, right = 0.08, 300000
    draw_roofs(axes, left, right)
    draw_under_the_roof(axes, rows, labels_at=9000)
    axes.plot([], [], "o", color="black", markersize=6, label="operations per byte asked")
    axes.plot([], [], "o", color="black", markersize=6, fillstyle="none", label="operations per byte through DRAM")
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(0.4, 30000), ylabel="TFLOP/s",
             xlabel="operations per byte of HBM")
    for axis, ticks in ((axes.xaxis, [0.1, 1, 10, 100, 1000, 10000]), (axes.yaxis, [1, 10, 100, 1000])):
        axis.set_ticks(ticks, ticks)
        axis.set_ticks([], minor=True)
    axes.legend(frameon=False, fontsize=9.5, loc="upper left")
    save(figure, axes, path, "The roofs of three cards, and rungs of all steps on an H200; N = 4096, d = 128, no mask", sources)


# ---- bytes, workspace, errors, loss ---------------------------------------------------------------

def draw_fp8_error(path, sources):
    """RMSE of each row of FlashAttention-3's table: in the simulator, on the card, and as the paper has it."""
    tables = {where: read_csv(file) for where, file in ACCURACY.items()}
    figure, axes = canvas("FP8's error", (7.6, 4))
    names = [row["row"] for row in tables["H200"]]
    for (where, rows), fill in zip(tables.items(), ("white", STEPS["06"][0])):
        axes.plot([float(row["rmse"]) for row in rows], range(len(rows)), "o", color="black", markersize=8,
                  markerfacecolor=fill, label=f"{where}: N = {rows[0]['seqlen']}, d = {rows[0]['head_dim']}")
    axes.plot([float(row["paper_rmse"]) for row in tables["H200"]], range(len(names)), "x", color="black", markersize=8,
              markeredgewidth=1.6, label="FlashAttention-3's paper, table 3")
    axes.grid(axis="y", color="#ccc", linewidth=0.6)
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", length=0)
    axes.set(xscale="log", xlabel="RMSE of O against attention in double precision", ylim=(len(names) - 0.4, -0.6),
             xlim=(3e-5, 0.4))
    axes.legend(framealpha=1, edgecolor="none", fontsize=9.5, loc="upper right")
    save(figure, axes, path, "What 8 bits cost in accuracy, on inputs with outliers", sources)


def by_length(path, kernel, what="forward"):
    rows = choose(path, f"kernel={kernel} head_dim=128 causal=0 pass={what} result=ok")
    return sorted(rows, key=lambda row: int(row["seqlen_q"]))


def lengths(rows):
    return [int(row["seqlen_q"]) for row in rows]


def axis_of_lengths(axes):
    ticks = [512, 1024, 2048, 4096, 8192, 16384]
    axes.set(xscale="log", yscale="log", xlabel="N, of 16,384 tokens in all")
    axes.set_xticks(ticks, ticks)
    axes.set_xticks([], minor=True)


def draw_bytes_against_N(path, sources):
    figure, axes = canvas("bytes against N", (7.6, 5.6))
    for file, kernel in ((STEP02, "naive"), (STEP02, "blocked"), (STEP02, "one-pass"), (STEP02, "fused"),
                         (STEP05, "fa2"), (STEP06, "fp8")):
        rows = by_length(file, kernel)
        colour, mark = STEPS[number_of(rows[0])]
        axes.plot(lengths(rows), [total(r, "model_") / 1e9 for r in rows], "-", color=colour, linewidth=1.2)
        axes.plot(lengths(rows), [asked(r) / 1e9 for r in rows], mark, color=colour, markeredgecolor="black",
                  label=f"{number_of(rows[0])} {kernel}, {rows[0]['dtype']}")
        axes.plot(lengths(rows), [total(r, "DRAM_") / 1e9 for r in rows], mark, color=colour, linestyle=":",
                  linewidth=1, fillstyle="none")
    axes.plot([], [], "o-", color="black", label="asked of HBM, and the model (line)")
    axes.plot([], [], "o:", color="black", fillstyle="none", label="through DRAM")
    axis_of_lengths(axes)
    axes.set(ylabel="bytes (GB)", ylim=(0.15, 2e5))
    axes.legend(frameon=False, fontsize=9.5, ncol=2, loc="upper left")
    save(figure, axes, path, "Bytes asked of HBM and through DRAM against N; d = 128, 16 heads, no mask", sources)


def draw_workspace_against_N(path, sources):
    figure, axes = canvas("workspace against N", (7.6, 4.8))
    for file, kernel, what, text in ((BACKWARD, "naive", "backward", "P, dP and dS"), (STEP02, "naive", "forward", "S and P"),
                                     (STEP02, "one-pass", "forward", "S"), (STEP06, "fp8", "forward", "Q, K and V in 8 bits"),
                                     (STEP02, "algorithm1", "forward", "m and l"), (BACKWARD, "recompute", "backward", "D")):
        rows = by_length(file, kernel, what)
        colour, mark = STEPS[number_of(rows[0])]
        axes.plot(lengths(rows), [int(r["workspace"]) / 1e9 for r in rows], mark + ("-" if what == "forward" else "--"),
                  color=colour, markeredgecolor="black", label=f"{number_of(rows[0])} {kernel}, {what}: {text}")
    inputs = int(by_length(STEP02, "one-pass")[0]["compulsory"]) / 1e9
    axes.axhline(inputs, color="black", linewidth=0.8, linestyle=":")
    axes.text(16384, inputs * 1.12, "Q, K, V, O and LSE in fp32", ha="right", fontsize=9.5)
    axes.text(512, 4e-4, "0 B: the forward of 03 fused, and of steps 05 and 06 in 16 bits", fontsize=9.5)
    axis_of_lengths(axes)
    axes.set(ylabel="workspace (GB)", ylim=(3e-4, 3e4))
    axes.legend(frameon=False, fontsize=9.5, ncol=2, loc="upper left")
    save(figure, axes, path, "Workspace against N; d = 128, 16 heads", sources)


def draw_training(path, sources):
    rows, values = read_csv(TRAINING), 16    # of train.c: who guesses has a loss of log 16
    figure, axes = canvas("training", (7.6, 3.8))
    for kernel, step, style, width in ("naive", "00", "-", 4), ("recompute", "04", "--", 1.6):
        loss = [float(row["loss"]) for row in rows if row["kernel"] == kernel]
        axes.plot(range(1, len(loss) + 1), loss, style, linewidth=width, color=STEPS[step][0], label=kernel)
    axes.axhline(math.log(values), color="black", linewidth=0.8, linestyle=":")
    axes.text(len(loss), math.log(values) + 0.05, "guessing: log 16", ha="right", fontsize=10)
    axes.set(xlabel="step of the training", ylabel="loss (natural logarithm)", ylim=(0, 3.1), xlim=(0, len(loss) + 2))
    axes.legend(frameon=False)
    save(figure, axes, path, "The loss of one attention layer that learns to recall, with two kernels", sources)


FIGURES = {BYTES_AGAINST_M: (draw_bytes_against_M, (SRAM, STEP02)), ROOFLINE: (draw_roofline, (LADDER, BESIDE)),
           LADDER_FIGURE: (draw_ladder, (LADDER, BESIDE)),
           BYTES_AGAINST_N: (draw_bytes_against_N, (STEP02, STEP05, STEP06)),
           WORKSPACE: (draw_workspace_against_N, (STEP02, STEP06, BACKWARD)),
           FP8_ERROR: (draw_fp8_error, tuple(ACCURACY.values())), TRAINING_FIGURE: (draw_training, (TRAINING,))}


def main(words):
    if words == ["--check"]:
        for path, (_, sources) in FIGURES.items():
            for needed in path, *sources:
                if not os.path.isfile(needed):
                    sys.exit(f"{needed}: not there")
            with open(path) as file:
                if source(*sources) not in file.read():
                    sys.exit(f"{path}: drawn from another {' or '.join(sources)}, or by another notes/plots.py: make plots")
    elif words == ["--ladder"]:
        ladder()
    elif words == ["--ladder", "16384"]:
        ladder(16384, 4096)
    elif words:
        sys.exit("usage: notes/plots.py [--check | --ladder | --ladder 16384]")
    else:
        for path, (draw, sources) in FIGURES.items():
            draw(path, sources)


if __name__ == "__main__":
    main(sys.argv[1:])
