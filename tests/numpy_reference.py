"""Attention by its definition, in NumPy and float64: what the C oracle is compared with.

    python3 tests/numpy_reference.py FOLDER

writes FOLDER/CASE/{Q,K,V,dO,O,LSE,dQ,dK,dV,options}.npy for each case below; options holds
[causal, scale].
tests/test_numerics.c reads them. The code shares nothing with the oracle but the definition.
"""
import os
import sys

import numpy as np

#        name          B  H  Hkv  Nq   Nk   d  causal  size of Q and K
CASES = [
    ("plain",          2, 3, 3,   33,  33,  64, False, 1),
    ("causal",         1, 2, 2,   33,  33,  64, True,  1),
    ("one_key",        1, 1, 1,    1,   1,   8, True,  1),
    ("one_query",      1, 2, 1,    1,  33,  40, True,  1),
    ("more_keys",      1, 2, 2,   17,  60,  40, True,  1),
    ("more_queries",   1, 2, 2,   60,  17,  40, True,  1),
    ("no_mask_uneven", 1, 2, 2,   60,  17,   8, False, 1),
    ("gqa",            2, 6, 2,   33,  20,   8, True,  1),
    ("mqa",            2, 4, 1,   20,  33,  64, False, 1),
    ("large",          1, 2, 2,   33,  40,  64, False, 8),
    ("large_causal",   1, 4, 2,   65,  33,   8, True,  12),
]


def for_each_query_head(K, Q):
    """K or V [B, Hkv, Nk, d] as [B, H, Nk, d]: query head h reads key/value head h // group."""
    return np.repeat(K, Q.shape[1] // K.shape[1], axis=1)


def weights(Q, K, causal, scale):
    """P [B, H, Nq, Nk] and LSE [B, H, Nq] for Q [B, H, Nq, d] and K [B, Hkv, Nk, d]."""
    K = for_each_query_head(K, Q)
    S = scale * np.einsum("bhid,bhjd->bhij", Q, K)
    nq, nk = S.shape[2:]
    if causal:
        visible = np.tri(nq, nk, nk - nq, dtype=bool)    # j <= i + Nk - Nq
        S = np.where(visible, S, -np.inf)
    m = S.max(axis=3, keepdims=True)
    m = np.where(np.isneginf(m), 0.0, m)     # a row without keys: exp(-inf - 0) = 0
    P = np.exp(S - m)
    l = P.sum(axis=3, keepdims=True)
    with np.errstate(divide="ignore"):
        LSE = (m + np.log(l))[..., 0]        # log 0 = -inf
    return P / np.where(l == 0, 1.0, l), LSE


def gradients(Q, K, V, dO, P, scale):
    """dQ, dK, dV of sum(dO * O), by the softmax's whole Jacobian: P_j's slope along S_k."""
    K_each, V_each = for_each_query_head(K, Q), for_each_query_head(V, Q)
    dP = np.einsum("bhid,bhjd->bhij", dO, V_each)
    jacobian = P[..., :, None] * (np.eye(P.shape[3]) - P[..., None, :])     # [B, H, Nq, Nk, Nk]
    dS = scale * np.einsum("bhij,bhijk->bhik", dP, jacobian)
    dQ = np.einsum("bhij,bhjd->bhid", dS, K_each)
    # From [B, H, Nk, d] to [B, Hkv, Nk, d]: the sum over the query heads of a group.
    dK = np.einsum("bhij,bhid->bhjd", dS, Q).reshape(*K.shape[:2], -1, *K.shape[2:]).sum(axis=2)
    dV = np.einsum("bhij,bhid->bhjd", P, dO).reshape(*V.shape[:2], -1, *V.shape[2:]).sum(axis=2)
    return dQ, dK, dV


def write_case(folder, rng, B, H, Hkv, Nq, Nk, d, causal, size):
    Q = (size * rng.standard_normal((B, H, Nq, d))).astype(np.float32)
    K = (size * rng.standard_normal((B, Hkv, Nk, d))).astype(np.float32)
    V = rng.standard_normal((B, Hkv, Nk, d)).astype(np.float32)
    dO = rng.standard_normal((B, H, Nq, d)).astype(np.float32)
    scale = float(np.float32(d ** -0.5))
    arrays = {"Q": Q, "K": K, "V": V, "dO": dO, "options": np.array([causal, scale])}
    Q, K, V, dO = (x.astype(np.float64) for x in (Q, K, V, dO))
    P, arrays["LSE"] = weights(Q, K, causal, scale)
    arrays["O"] = P @ for_each_query_head(V, Q)
    arrays["dQ"], arrays["dK"], arrays["dV"] = gradients(Q, K, V, dO, P, scale)
    os.makedirs(folder, exist_ok=True)
    for name, array in arrays.items():
        path = os.path.join(folder, name + ".npy")
        part = f"{path}.{os.getpid()}"
        with open(part, "wb") as file:
            np.save(file, array)
        os.replace(part, path)    # in one go: tests of another run may be reading the old one


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: numpy_reference.py FOLDER")
    rng = np.random.default_rng(1)
    for name, *case in CASES:
        write_case(os.path.join(sys.argv[1], name), rng, *case)


if __name__ == "__main__":
    main()
