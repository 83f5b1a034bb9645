"""Every kernel against attention computed here, in float64, from nothing but its own files.

    python3 tests/crosscheck.py build/sim/ladder SCRATCH_FOLDER

runs the program on each case below with --dump, reads Q, K, V, O and LSE back, and computes O and
LSE again, one query at a time. So it checks what the C tests cannot: that the oracle, the options
and the .npy files do not share a mistake. FP8 kernels are left out: they are judged by RMSE.
"""
import csv
import itertools
import os
import shlex
import subprocess
import sys
import tempfile

import numpy as np

CASES = [
    # B  H Hkv  Nq   Nk    d  causal  further options
    (1, 2, 2,    1,   1,   8, False, ""),
    (1, 1, 1,    1,  33,  64, True,  ""),
    (1, 2, 2,   33,   1,  40, False, ""),
    (2, 2, 2,   33,  33,  64, False, ""),
    (1, 2, 2,   33,  33,  40, True,  "--data constant"),
    (1, 2, 2,  100, 100,  64, True,  "--seed 18446744073709551615"),
    (1, 2, 2,  130, 130,  64, False, "--data rising"),
    (1, 1, 1,  130, 130, 128, True,  "--seed 2"),
    (1, 2, 2,  130,  33,  64, True,  ""),              # the first 97 queries see no key
    (1, 2, 2,   33, 130,  64, True,  "--data one-hot"),
    (1, 1, 1,  100,  33,   8, True,  "--data constant"),
    (1, 1, 1,   33, 100,   8, True,  ""),
    (2, 6, 2,   33,  40,  64, True,  ""),              # GQA
    (2, 4, 1,   40,  33,  40, False, "--seed 3"),      # MQA
    (1, 4, 1,   33, 100,  64, False, "--data outliers"),
    (1, 2, 2,  100, 100,  64, False, "--data large"),
    (1, 2, 1,  130, 100,  40, True,  "--data large"),
    (1, 2, 2,  100, 100,   8, False, "--data one-hot"),
    (1, 2, 2,   33,  33,  64, False, "--scale 1"),
    (1, 2, 2,   33,  40,   8, True,  "--scale 0.05 --seed 0"),
]

TYPES = ("fp32", "fp16", "bf16", "fp8")
# Half a unit in the last place of 1: the largest relative error of one rounding.
ROUNDING = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
# Below its normal numbers fp16 rounds to multiples of 2^-24. The other types keep fp32's exponents.
UNDERFLOW = {"fp32": 0.0, "fp16": 2.0**-25, "bf16": 0.0}


def attention_row(q, K, V, scale, dtype):
    """O [d] and LSE of the query q [d] that sees the keys K, V [n, d], and how far each may be off.

    The bound is the worst case of rounding, in terms of u = 2^-24 (twice, as matrix units cut off
    instead of rounding), to first order:
      a logit sums d products and meets a few more roundings:  delta = 2u (d + 6) sum |q k| scale
      LSE takes over delta, and sums n terms:                  delta + 2u (n + 8) + 2u |LSE|
      P = exp(S) / l has delta twice, in exp(S) and in l, and PV sums n products; then P and O are
      rounded to the data type:        (2 delta + 2u (2n + 16) + 3 ROUNDING) P |V|  + underflow
    """
    if len(K) == 0:
        return np.zeros_like(q), -np.inf, 0.0, 0.0
    n, u = len(K), 2.0**-24
    S = scale * (K @ q)
    exp_S = np.exp(S - S.max())
    P, LSE = exp_S / exp_S.sum(), S.max() + np.log(exp_S.sum())
    delta = 2 * u * (len(q) + 6) * scale * (np.abs(K) @ np.abs(q)).max()
    relative = 2 * delta + 2 * u * (2 * n + 16) + 3 * ROUNDING[dtype]
    off_O = relative * (P @ np.abs(V)) + UNDERFLOW[dtype] * (1 + np.abs(V).sum(axis=0))
    return P @ V, LSE, off_O, delta + 2 * u * (n + 8) + 2 * u * abs(LSE)


def share_of_bound(got, want, bound):
    """The largest |got - want| / bound. NaN, a wrong infinity, or any error where none is allowed,
    make it infinite; -inf may equal -inf."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(got == want, 0.0, np.abs(got - want) / bound)
    return float(np.max(np.where(np.isnan(share), np.inf, share)))


def load(folder, name, shape):
    array = np.load(os.path.join(folder, name + ".npy"))
    if array.shape != shape or array.dtype != np.float32:
        sys.exit(f"{folder}/{name}.npy: {array.dtype} {array.shape} where float32 {shape} belongs")
    return array.astype(np.float64)


def compare(folder, case, dtype):
    """The largest share of the bound, over all rows of O and LSE in the folder."""
    B, H, Hkv, Nq, Nk, d, causal, further = case
    Q, O = (load(folder, name, (B, H, Nq, d)) for name in "QO")
    K, V = (load(folder, name, (B, Hkv, Nk, d)) for name in "KV")
    LSE = load(folder, "LSE", (B, H, Nq))
    words = further.split()
    scale = float(np.float32(words[words.index("--scale") + 1] if "--scale" in words else d**-0.5))
    worst = 0.0
    for b, h, i in np.ndindex(B, H, Nq):
        sees = max(0, i + Nk - Nq + 1) if causal else Nk    # keys 0 .. sees - 1
        k, v = (x[b, h // (H // Hkv), :sees] for x in (K, V))
        o, lse, off_O, off_LSE = attention_row(Q[b, h, i], k, v, scale, dtype)
        worst = max(worst, share_of_bound(O[b, h, i], o, off_O),
                    share_of_bound(LSE[b, h, i], lse, off_LSE))
    return worst


def options(case, dtype):
    B, H, Hkv, Nq, Nk, d, causal, further = case
    return (f"-b {B} -H {H} --kv-heads {Hkv} --seqlen-q {Nq} --seqlen-k {Nk} -d {d} "
            f"--dtype {dtype} {'--causal ' if causal else ''}{further}").strip()


def list_kernels(program):
    """{name: its types}, from the table that --list prints: step, kernel, types, idea."""
    lines = subprocess.run([program, "--list"], stdout=subprocess.PIPE, text=True,
                           check=True).stdout.splitlines()[1:]
    rows = [line.split() for line in lines]
    return {row[1]: list(itertools.takewhile(TYPES.__contains__, row[2:])) for row in rows}


def run(program, line, folder):
    """The program's rows, {kernel: result}, after it has written the tensors to the folder."""
    command = [program, *shlex.split(line), "--format", "csv", "--dump", folder]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    if done.returncode not in (0, 3):     # 3: no kernel takes this shape in this type
        wrong = [f"{row['kernel']}: {row['why']}" for row in rows if row["result"] == "wrong"]
        sys.exit(f"exit status {done.returncode} at {line}: {done.stderr.strip()}{wrong}")
    return {row["kernel"]: row["result"] for row in rows}


def check(program, case, dtype, several, shares):
    """Runs one case; adds each kernel's share of the bound to shares[kernel, dtype]."""
    line = options(case, dtype)
    # A new folder each time: what an earlier run left must not pass for this one's.
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as folder:
        for name, result in run(program, line, folder).items():
            if result != "ok":
                continue    # its row says why it does not take this shape or type
            share = compare(os.path.join(folder, name) if several else folder, case, dtype)
            if not share <= 1:
                sys.exit(f"{name}: {share:.3g} times the rounding bound at {line}")
            shares[name, dtype].append(share)


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: crosscheck.py PROGRAM SCRATCH_FOLDER")
    kernels = list_kernels(sys.argv[1])
    shares = {(name, dtype): [] for name in kernels for dtype in kernels[name] if dtype != "fp8"}
    if not shares:
        sys.exit("there is no kernel to compare")
    for dtype in sorted({dtype for _, dtype in shares}):
        for case in CASES:
            check(sys.argv[1], case, dtype, len(kernels) > 1, shares)
    for (name, dtype), of_bound in shares.items():
        if not of_bound:
            sys.exit(f"{name} {dtype}: not compared on any shape")
        print(f"{name:16} {dtype}  {len(of_bound):3} shapes agree with NumPy, "
              f"at worst {100 * max(of_bound):.1f}% of the rounding bound")


if __name__ == "__main__":
    main()
