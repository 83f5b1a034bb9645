"""Write Q.npy, K.npy, V.npy: the attention input of one layer of a real language model.

usage: extract.py MODEL_FOLDER [--check]

MODEL_FOLDER holds vocab.txt and model.safetensors of all-MiniLM-L6-v2 (README.md says how to
get it). The model is computed below in plain NumPy, without any library of networks. --check
compares the last layer's output with that of the package sentence-transformers (PyTorch).
"""
import hashlib
import json
import math
import re
import sys
from pathlib import Path

import numpy as np

LAYER = 0              # the layer whose Q, K, V are written, counted from 0
HEADS, D = 12, 32      # 12 heads of size 32: the hidden size is 384
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"    # of the weights


def read_safetensors(path):
    """The format: 8 bytes with the header's length, the header in JSON, then the raw numbers."""
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != SHA256:
        sys.exit(f"{path}: not the expected weights")
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, t in json.loads(data[8:start]).items():
        if t.get("dtype") == "F32":    # skips a table of positions and the metadata
            a, b = (start + offset for offset in t["data_offsets"])
            tensors[name] = np.frombuffer(data[a:b], "<f4").reshape(t["shape"])
    return tensors


def tokenise(text, vocab):
    """WordPiece: cut each word, from the left, into the longest pieces the vocabulary has."""
    ids = [vocab["[CLS]"]]             # BERT opens a text with this token ...
    for word in re.findall(r"[a-z0-9]+|[^a-z0-9\s]", text.lower()):    # enough for plain ASCII
        prefix = ""
        while word:
            end = len(word)
            while prefix + word[:end] not in vocab:
                end -= 1
            ids.append(vocab[prefix + word[:end]])
            prefix, word = "##", word[end:]    # "##" marks a piece that continues a word
    return ids + [vocab["[SEP]"]]      # ... and closes it with this one


def attention_weights(q, k):
    """The scaled logits and their softmax, [HEADS, N, N] each: row i is about query i."""
    s = q.astype("f8") @ k.swapaxes(1, 2) / math.sqrt(D)
    e = np.exp(s - s.max(-1, keepdims=True))
    return s, e / e.sum(-1, keepdims=True)


def forward(ids, w):
    """The last layer's output, [N, 384], and (Q, K, V) of every layer, [HEADS, N, D] each."""
    # Sums are in float64, so that the order another machine adds in does not show in float16.
    def linear(x, name):               # a stored weight is [out, in]
        return x @ w[name + ".weight"].T.astype("f8") + w[name + ".bias"]

    def norm(x, name):                 # layer normalisation
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
        return x * w[name + ".weight"] + w[name + ".bias"]

    erf = np.vectorize(math.erf)       # NumPy has none of its own
    word, kind, position = (w[f"embeddings.{n}_embeddings.weight"].astype("f8")
                            for n in ("word", "token_type", "position"))
    x = norm(word[ids] + kind[0] + position[:len(ids)], "embeddings.LayerNorm")
    layers = []
    for i in range(6):
        p = f"encoder.layer.{i}."
        # Head h owns columns 32h .. 32h+31: [N, 384] -> [N, 12, 32] -> [12, N, 32].
        q, k, v = (linear(x, p + "attention.self." + n).reshape(-1, HEADS, D).swapaxes(0, 1)
                   for n in ("query", "key", "value"))
        layers.append((q, k, v))
        o = attention_weights(q, k)[1] @ v             # every token sees every token: no mask
        o = o.swapaxes(0, 1).reshape(x.shape)          # the heads side by side again
        x = norm(x + linear(o, p + "attention.output.dense"), p + "attention.output.LayerNorm")
        h = linear(x, p + "intermediate.dense")
        h = h * (1 + erf(h / math.sqrt(2))) / 2        # GELU
        x = norm(x + linear(h, p + "output.dense"), p + "output.LayerNorm")
    return x, layers


def keys_for_90_percent(p):
    """For every row, how many of its heaviest keys carry 90% of its weight."""
    carried = np.cumsum(-np.sort(-p), -1)      # by the heaviest key, by the two heaviest, ...
    return (carried < 0.9).sum(-1) + 1


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    model, here = Path(sys.argv[1]), Path(__file__).parent
    pieces = (model / "vocab.txt").read_text(encoding="utf-8").strip().split("\n")
    text = (here / "paragraph.txt").read_text(encoding="ascii")
    ids = tokenise(text, {piece: i for i, piece in enumerate(pieces)})
    x, layers = forward(ids, read_safetensors(model / "model.safetensors"))
    if "--check" in sys.argv:
        from sentence_transformers import SentenceTransformer
        y = SentenceTransformer(str(model)).encode(text, output_value="token_embeddings")
        print(f"check: largest difference {abs(x - y.cpu().numpy()).max():.1e}, "
              f"largest value {abs(x).max():.1f}")
    layers = [[t.astype("<f2") for t in qkv] for qkv in layers]        # the one rounding
    print(f"{len(ids)} tokens\nlayer   logits: from     to   largest weight   keys for 90%")
    for i, (q, k, v) in enumerate(layers):
        s, p = attention_weights(q, k)
        print(f"{i:5} {s.min():14.2f} {s.max():6.2f} {p.max():16.6f} "
              f"{keys_for_90_percent(p).mean():14.1f}")

    for name, t in zip("QKV", layers[LAYER]):
        np.save(here / f"{name}.npy", np.ascontiguousarray(t[None]))   # [1, HEADS, N, D]
    q, k, v = layers[LAYER]
    p = attention_weights(q, k)[1]
    keys = keys_for_90_percent(p).mean(-1)
    print(f"layer {LAYER}, keys for 90%, head by head:", *(f"{n:.1f}" for n in keys))
    h = keys.argmin()                          # the most peaked head
    shift, vmax = abs(p[h, 1:] @ v[h] - v[h, :-1]).max(), abs(v[h]).max()
    print(f"head {h}: row i gives key i-1 at least {p[h].diagonal(-1).min():.3f} of its weight;\n"
          f"        row i of O is row i-1 of V within {shift:.3f} (largest |V|: {vmax:.3f})")


if __name__ == "__main__":
    main()
