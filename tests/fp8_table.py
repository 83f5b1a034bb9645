"""What FP8 costs in accuracy: FlashAttention-3's table 3, from this repository's kernels.

    make fp8-table                          in the simulator: a small shape
    make fp8-table DEVICE=gpu               on a GPU: a large one; ARGS="-n 16384 -d 128"

Inputs are N(0, 1) + N(0, 10^2) * Bernoulli(0.001) (--data outliers), and the error is the root mean
square of O's distance to attention in double precision of the inputs as they are. The rows:

    16-bit, standard       S and P rounded to fp16 on their way, as when they pass through HBM (NumPy,
                           below: the steps' kernels keep S in fp32)
    16-bit, flash          --kernel fa3 --dtype fp16
    FP8                    --kernel fp8 with --fp8-scale tensor or block, with and without --rotate

The paper's figures stand beside: Shah et al., "FlashAttention-3", arXiv:2407.08608, table 3. It does
not say of what shape they are, so these and ours can be compared line with line, not to the digit.
"""
import argparse
import csv
import datetime
import io
import math
import os
import re
import subprocess
import sys
import tempfile

import numpy as np

# Name, the kernel's options (None: NumPy), the paper's RMSE.
ROWS = [
    ("16-bit, standard", None, 3.2e-4),
    ("16-bit, flash", ["--dtype", "fp16"], 1.9e-4),
    ("FP8, a scale for each tensor", ["--dtype", "fp8"], 2.4e-2),
    ("FP8, a scale for each block", ["--dtype", "fp8", "--fp8-scale", "block"], 2.4e-2),
    ("FP8, rotated", ["--dtype", "fp8", "--rotate"], 9.3e-3),
    ("FP8, rotated, a scale for each block",
     ["--dtype", "fp8", "--rotate", "--fp8-scale", "block"], 9.1e-3),
]
COLUMNS = ["date", "device", "driver", "row", "kernel", "fp8_sums", "batch", "heads", "seqlen", "head_dim", "seeds",
           "rmse", "baseline_rmse", "paper_rmse", "command", "commit"]


# ---- the program, one run ------------------------------------------------------------------------

def stop(why, status):
    print(f"fp8_table.py: {why}", file=sys.stderr)
    sys.exit(status)


def run(program, options):
    """The CSV row of a run with one kernel. Ends the script where the kernel could not, or was wrong."""
    command = [program, "--format", "csv", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    if done.returncode or len(rows) != 1 or rows[0]["result"] != "ok":
        stop(f"{' '.join(command)}: {done.stderr.strip() or (rows[0]['why'] if rows else 'no output')}",
             done.returncode or 1)
    return rows[0]


def kernels_of(program):
    listing = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout
    return [line.split()[1] for line in listing.splitlines()[1:]]


# ---- standard attention in fp16, and in double ---------------------------------------------------

def softmax(S):
    P = np.exp(S - S.max(axis=-1, keepdims=True))
    return P / P.sum(axis=-1, keepdims=True)


def standard_fp16(Q, K, V, scale):
    """Q, K, V [N, d] of one head hold fp16 numbers. Products are added in fp32, as tensor cores do."""
    S = (np.float32(scale) * (Q @ K.T)).astype(np.float16)
    P = softmax(S.astype(np.float32)).astype(np.float16)
    return (P.astype(np.float32) @ V).astype(np.float16)


def squares_of_standard(folder, rows_at_once=1024):
    """Sum of the squares of its errors over all heads, and how many there are."""
    Q, K, V = (np.load(os.path.join(folder, f"{name}.npy")) for name in "QKV")
    heads, d = Q.shape[0] * Q.shape[1], Q.shape[3]
    squares, scale = 0.0, 1 / math.sqrt(d)
    for q, k, v in zip(*(x.reshape(heads, -1, d) for x in (Q, K, V))):
        for i in range(0, len(q), rows_at_once):
            part = q[i:i + rows_at_once]
            right = softmax(scale * (part.astype(np.float64) @ k.T.astype(np.float64))) @ v.astype(np.float64)
            squares += np.square(standard_fp16(part, k, v, scale) - right).sum()
    return squares, Q.size


# ---- the table -----------------------------------------------------------------------------------

def measure(arguments, options, seed):
    """(mean square error, the FP8 baseline's or None, the kernel's row)."""
    shape = ["-b", arguments.batch, "-H", arguments.heads, "-n", arguments.seqlen, "-d", arguments.head_dim]
    common = ["--data", "outliers", "--seed", seed, "--repeat", 1, *shape]
    common = [str(word) for word in common] + arguments.more
    if options is not None:
        kernel = arguments.fp8_kernel if "fp8" in options else arguments.kernel
        row = run(arguments.program, [*common, "--kernel", kernel, *options])
        base = float(row["base_rmse_O"]) ** 2 if row["base_rmse_O"] else None
        return float(row["rmse_O"]) ** 2, base, row
    with tempfile.TemporaryDirectory() as folder:
        row = run(arguments.program, [*common, "--kernel", arguments.kernel, "--dtype", "fp16", "--dump", folder])
        squares, elements = squares_of_standard(folder)
    return squares / elements, None, row


def result_of(arguments, name, options, paper):
    """One row of the CSV, over all seeds."""
    runs = [measure(arguments, options, seed) for seed in range(1, arguments.seeds + 1)]
    rms = lambda squares: math.sqrt(sum(squares) / len(squares))
    kernel = "NumPy" if options is None else arguments.fp8_kernel if "fp8" in options else arguments.kernel
    base = "" if runs[0][1] is None else f"{rms([r[1] for r in runs]):.4g}"
    row = runs[0][2]
    return dict(zip(COLUMNS, [datetime.datetime.now(datetime.timezone.utc).date(), row["device"], row["driver"], name,
                              kernel, row["fp8_sums"], arguments.batch, arguments.heads, arguments.seqlen,
                              arguments.head_dim, arguments.seeds, f"{rms([r[0] for r in runs]):.4g}", base, paper,
                              arguments.command, arguments.commit]))


def print_row(row):
    print(f"{row['row']:38} {row['kernel']:12} {float(row['rmse']):9.1e} "
          f"{float(row['baseline_rmse']) if row['baseline_rmse'] else math.nan:10.1e} "
          f"{float(row['paper_rmse']):9.1e}".replace("nan", "  -"), flush=True)


def write(path, rows):
    with open(path, "w") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.error = lambda why: stop(f"{why}; --help lists the options", 2)
    parser.add_argument("program", help="build/sim/ladder, build/gpu/ladder")
    parser.add_argument("-b", "--batch", type=int, default=1)
    parser.add_argument("-H", "--heads", type=int, default=2)
    parser.add_argument("-n", "--seqlen", type=int, default=1024)
    parser.add_argument("-d", "--head-dim", type=int, default=64, help="a power of two, for --rotate")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kernel", default="fa3", help="of the 16-bit rows")
    parser.add_argument("--fp8-kernel", default="fp8")
    parser.add_argument("--out", help="a CSV file")
    parser.add_argument("--commit", default="", help="what the programs are of, for the CSV file")
    arguments, arguments.more = parser.parse_known_args(words)
    if arguments.seeds < 1:
        parser.error(f"--seeds {arguments.seeds}: must be at least 1")
    if arguments.out and not os.path.isdir(os.path.dirname(arguments.out) or "."):
        parser.error(f"--out {arguments.out}: there is no such folder")    # before anything is measured
    if not os.access(arguments.program, os.X_OK) or os.path.isdir(arguments.program):
        parser.error(f"{arguments.program}: no program; make sim builds build/sim/step06")
    arguments.command = re.sub(r" --(out|commit)[ =]\S*", "", " ".join(["tests/fp8_table.py", *words]))
    return arguments


def main(words):
    arguments = parse(words)
    known = kernels_of(arguments.program)
    print(f"RMSE of O, outliers, B {arguments.batch}, H {arguments.heads}, N {arguments.seqlen}, "
          f"d {arguments.head_dim}, seeds 1 to {arguments.seeds}\n")
    print(f"{'':38} {'kernel':12} {'RMSE':>9} {'baseline':>10} {'paper':>9}")
    rows = []
    for name, options, paper in ROWS:
        kernel = arguments.fp8_kernel if options and "fp8" in options else arguments.kernel
        if kernel not in known:
            stop(f"{arguments.program} has no kernel {kernel}; --list shows them", 2)
        rows.append(result_of(arguments, name, options, paper))
        print_row(rows[-1])
    print("\nbaseline: attention that quantises in the same way and is exact otherwise (common/fp8.h).\n"
          "paper: FlashAttention-3, arXiv:2407.08608, table 3; its shape is not stated.")
    if arguments.out:
        write(arguments.out, rows)


if __name__ == "__main__":
    main(sys.argv[1:])
