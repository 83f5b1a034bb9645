#!/usr/bin/python3
"""Fills the marked blocks of Markdown files with what programs print, so that no number is typed.

    <!-- run: build/sim/step00 -n 512 -->      the output of this command
    <!-- ladder: notes/results/x.csv -->       a table from a CSV of the harness
    <!-- end -->                               ends either

    notes/fill.py FILE...           rewrites the blocks
    notes/fill.py --check FILE...   fails, naming the block, when one is out of date
"""
import csv
import os
import re
import subprocess
import sys

BLOCK = re.compile(r"(<!-- (run|ladder): (.*?) -->\n)(.*?)(<!-- end -->)", re.S)


def run(command):
    out = subprocess.run(command.split(), capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"{command}: exit status {out.returncode}\n{out.stdout}{out.stderr}")
    return f"```\n$ {command}\n{out.stdout}```\n"


def bytes_text(value):
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
        value /= 1000


def total(row, prefix):
    cells = [row[c] for c in row if c.startswith(prefix)]
    return bytes_text(sum(int(c) for c in cells)) if any(cells) else ""


def read_csv(path):
    with open(path) as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def ladder(path, page):
    rows = read_csv(path)
    link = os.path.relpath(path, os.path.dirname(page) or ".")
    text = "| step | kernel | asked of HBM | through L2 | through DRAM | workspace | time | TFLOP/s |\n"
    text += "|---|---|--:|--:|--:|--:|--:|--:|\n"
    for r in rows:
        time = f"{float(r['time_us']) / 1000:.3g} ms" if r["time_us"] else ""
        speed = f"{float(r['TFLOPs']):.3g}" if r["TFLOPs"] else ""
        text += (f"| {r['step']} | {r['kernel']} | {total(r, 'asked_')} | {total(r, 'L2_')} | "
                 f"{total(r, 'DRAM_')} | {bytes_text(int(r['workspace']))} | {time} | {speed} |\n")
    r = rows[0]
    least = bytes_text(int(r["compulsory"]))
    text += (f"\n{r['device']}, driver {r['driver']}, {r['date']}: B {r['batch']}, H {r['heads']}, "
             f"N {r['seqlen_q']}, d {r['head_dim']}, {r['dtype']}, "
             f"{'causal' if r['causal'] == '1' else 'no mask'}; reading each input and writing each output once "
             f"would be {least}. `{r['command']}` ([all columns]({link})).\n")
    return text


def fill(match, page):
    start, kind, what, _, end = match.groups()
    return start + (run(what) if kind == "run" else ladder(what, page)) + end


def main(words):
    check = words[:1] == ["--check"]
    stale = []
    for path in words[check:]:
        with open(path) as file:
            old = file.read()
        new = BLOCK.sub(lambda match: fill(match, path), old)
        if old.count("<!-- end -->") != len(BLOCK.findall(old)):
            sys.exit(f"{path}: a block is not closed by <!-- end -->, or an end has no block")
        if new == old:
            continue
        stale.append(path)
        if not check:
            with open(path, "w") as file:
                file.write(new)
    if check and stale:
        sys.exit(f"out of date: {' '.join(stale)}; `make fill` rewrites the blocks, look at the difference")


if __name__ == "__main__":
    main(sys.argv[1:])
