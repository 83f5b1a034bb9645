"""Every kernel against attention computed here, in float64, from nothing but its own files.

    python3 tests/crosscheck.py build/sim/ladder SCRATCH_FOLDER

runs each kernel that --list names, variants too, on each case below with --dump, reads its tensors
back, and computes O, LSE and the gradients again with the NumPy of step00 (step00_naive/attention.py). So it checks what the C tests cannot: that the oracle, the options
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

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "step00_naive"))
from attention import attention, attention_backward  # noqa: E402

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
# Below its normal numbers fp16 rounds to multiples of 2^-24; the other types may flush to 0 there.
UNDERFLOW = {"fp32": 2.0**-126, "fp16": 2.0**-25, "bf16": 2.0**-126}


def bounds(Q, K, V, scale, causal, dtype):
    """O, LSE and P of one head by step00's NumPy, and how far O and LSE may be off.

    The bound is the worst case of rounding, in terms of u = 2^-24 (twice, as matrix units cut off
    instead of rounding), to first order:
      a logit sums d products and meets a few more roundings:  delta = 2u (d + 6) sum |q k| scale
      LSE takes over delta, and sums n terms:                  delta + 2u (n + 8) + 2u |LSE|
      P = exp(S) / l has delta twice, in exp(S) and in l, and PV sums n products; then P and O are
      rounded to the data type:        (2 delta + 2u (2n + 16) + 3 ROUNDING) P |V|  + underflow
    """
    O, LSE, P = attention(Q, K, V, scale, causal)
    n, u = len(K), 2.0**-24
    delta = 2 * u * (Q.shape[1] + 6) * scale * (np.abs(Q) @ np.abs(K).T * (P > 0)).max(axis=1)
    relative = (2 * delta + 2 * u * (2 * n + 16) + 3 * ROUNDING[dtype])[:, None]
    off_O = relative * (P @ np.abs(V)) + UNDERFLOW[dtype] * (1 + np.abs(V).sum(axis=0))
    seen = np.isfinite(LSE)    # a query that sees no key: exactly -inf, and O exactly 0
    off_LSE = np.where(seen, delta + 2 * u * (n + 8) + 2 * u * np.abs(np.where(seen, LSE, 0)), 0)
    return O, LSE, P, np.where(seen[:, None], off_O, 0), off_LSE, relative


def gradient_bounds(Q, K, V, dO, P, scale, relative, dtype):
    """dQ, dK, dV of one head by step00's NumPy, and how far each may be off, to first order:
      dP sums d products:                     e_dP = 2u (d + 2) |dO| |V|^T
      D sums P dP over the row:               e_D = rowsum(e_P |dP| + P e_dP) + 2u n rowsum(P |dP|)
        or dO O, and O is off, too:           e_D = rowsum(|dO| e_O) + 2u n rowsum(|dO| P |V|)
      dS = P (dP - D), rounded to the type:   e_dS = e_P |dP - D| + P (e_dP + e_D) + 2 ROUNDING |dS|
      and a product with e elements of error adds 2u (n + 4) times the sum of magnitudes, and the
      rounding of the result.
    """
    r, u, d = ROUNDING[dtype], 2.0**-24, Q.shape[1]
    dQ, dK, dV = attention_backward(Q, K, V, dO, P, scale)
    dP = dO @ V.T
    D = (P * dP).sum(axis=1, keepdims=True)
    dS, e_P = P * (dP - D), relative * P + UNDERFLOW[dtype]
    e_dP = 2 * u * (d + 2) * (np.abs(dO) @ np.abs(V).T)
    n = sum(P.shape) + 4
    e_D = (e_P * np.abs(dP) + P * e_dP).sum(axis=1, keepdims=True) + \
        (2 * u * n + 3 * r) * (P * np.abs(dP)).sum(axis=1, keepdims=True)
    PV = P @ np.abs(V)
    e_O = (relative + 2 * u * n) * PV + UNDERFLOW[dtype] * (1 + np.abs(V).sum(axis=0))
    e_D = np.maximum(e_D, (np.abs(dO) * e_O).sum(axis=1, keepdims=True))
    e_dS = e_P * np.abs(dP - D) + P * (e_dP + e_D) + 2 * (r + u) * np.abs(dS) + UNDERFLOW[dtype]

    def product(e, A, B):
        return (e + (2 * u * n + 2 * r) * np.abs(A)) @ np.abs(B) + UNDERFLOW[dtype]

    return ((dQ, scale * product(e_dS, dS, K)), (dK, scale * product(e_dS.T, dS.T, Q)),
            (dV, product(e_P.T, P.T, dO)))


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


def compare_head(at, tensors, scale, causal, dtype, sums):
    """The largest share of the bound over O and LSE of one head; adds its gradients to `sums`."""
    Q, K, V, O, LSE, dO = tensors
    right_O, right_LSE, P, off_O, off_LSE, relative = bounds(Q, K, V, scale, causal, dtype)
    if dO is not None:
        for total, part in zip(sums, gradient_bounds(Q, K, V, dO, P, scale, relative, dtype)):
            total[0][at] += part[0]
            total[1][at] += part[1]
    return max(share_of_bound(O, right_O, off_O), share_of_bound(LSE, right_LSE, off_LSE))


def compare(folder, case, dtype, backward):
    """The largest share of the bound, over all that the folder holds."""
    B, H, Hkv, Nq, Nk, d, causal, further = case
    q_shape, kv_shape = (B, H, Nq, d), (B, Hkv, Nk, d)
    Q, O = (load(folder, name, q_shape) for name in "QO")
    K, V = (load(folder, name, kv_shape) for name in "KV")
    LSE = load(folder, "LSE", (B, H, Nq))
    dO = load(folder, "dO", q_shape) if backward else None
    words = further.split()
    scale = float(np.float32(words[words.index("--scale") + 1] if "--scale" in words else d**-0.5))
    worst = 0.0
    # [gradient, how far it may be off]; heads that share a key/value head add to the same dK and dV.
    grads = [[np.zeros(s), np.zeros(s)] for s in (q_shape, kv_shape, kv_shape)]
    for b, h in np.ndindex(B, H):
        kv = h // (H // Hkv)
        sums = [[x[b, h if i == 0 else kv][None] for x in grads[i]] for i in range(3)]
        tensors = (Q[b, h], K[b, kv], V[b, kv], O[b, h], LSE[b, h], None if dO is None else dO[b, h])
        worst = max(worst, compare_head(0, tensors, scale, causal, dtype, sums))
    if backward:
        group = 2.0**-24 * 2 * (H // Hkv)
        for name, (right, off) in zip(("dQ", "dK", "dV"), grads):
            got = load(folder, name, right.shape)
            off += (group + ROUNDING[dtype]) * np.abs(right) + UNDERFLOW[dtype]
            worst = max(worst, share_of_bound(got, right, off))
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


def run(program, name, line, folder):
    """The passes that this kernel has run, after it has written its tensors to the folder."""
    # --fast: here only values count. Bytes and races on such shapes are the business of the C tests.
    command = [program, "--kernel", name, *shlex.split(line), "--pass", "both", "--format", "csv",
               "--dump", folder, "--fast"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    rows = list(csv.DictReader(done.stdout.splitlines()))
    # 2, and the kernel's own reason: it does not take this shape, or has no backward.
    refused = done.returncode == 2 and f": --kernel {name}: " in done.stderr
    if done.returncode and not refused:
        wrong = [row["why"] for row in rows if row["result"] == "wrong"]
        sys.exit(f"{name}: exit status {done.returncode} at {line}: {done.stderr.strip()}{wrong}")
    return {row["pass"] for row in rows if row["result"] == "ok"}


def check(program, case, name, dtype, shares):
    """Runs one case; adds the kernel's share of the bound to shares[kernel, dtype]."""
    line = options(case, dtype)
    # A new folder each time: what an earlier run left must not pass for this one's.
    with tempfile.TemporaryDirectory(dir=sys.argv[2]) as folder:
        passes = run(program, name, line, folder)
        if "forward" not in passes:
            return
        share = compare(folder, case, dtype, "backward" in passes)
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
    for name, dtype in shares:
        for case in CASES:
            check(sys.argv[1], case, name, dtype, shares)
    for (name, dtype), of_bound in shares.items():
        if not of_bound:
            sys.exit(f"{name} {dtype}: not compared on any shape")
        print(f"{name:16} {dtype}  {len(of_bound):3} shapes agree with NumPy, "
              f"at worst {100 * max(of_bound):.1f}% of the rounding bound")


if __name__ == "__main__":
    main()
