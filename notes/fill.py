#!/usr/bin/python3
"""Fills the marked blocks of Markdown files with what programs print, so that no number is typed.

    <!-- run: build/sim/step00 -n 512 -->      the output of this command
    <!-- ladder: FILE CONDITION... -->         a row for each kernel of a CSV, all of one problem
    <!-- table: FILE CONDITION... : rows COLUMN, columns COLUMN : EXPRESSION | FORMAT -->
                                               one number of the CSV for each two values, see book.py
    <!-- end -->                               ends each

For example, the bytes of DRAM by N and kernel; a condition may list several values, in their order:

    <!-- table: h200_fp32.csv head_dim=64 causal=0 kernel=fused,algorithm1 :
         rows seqlen_q, columns kernel : DRAM_read + DRAM_write | bytes -->

    notes/fill.py FILE...           rewrites the blocks
    notes/fill.py --check FILE...   fails, naming the block, when one is out of date
"""
import os
import re
import subprocess
import sys

from cells import bytes_text, choose, evaluate, styled

BLOCK = re.compile(r"(<!-- (run|ladder|table): (.*?) -->\n)(.*?)(<!-- end -->)", re.S)


def run(command):
    out = subprocess.run(command.split(), capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"{command}: exit status {out.returncode}\n{out.stdout}{out.stderr}")
    return f"```\n$ {command}\n{out.stdout}```\n"


def total(row, prefix):
    cells = [row[c] for c in row if c.startswith(prefix)]
    return bytes_text(sum(int(c) for c in cells)) if any(cells) else ""


PROBLEM = ("device", "driver", "pass", "input", "dtype", "batch", "heads", "kv_heads", "seqlen_q",
           "seqlen_k", "head_dim", "causal", "scale")


def ladder(what, page):
    path, _, conditions = what.partition(" ")
    rows = choose(path, conditions)
    folder = os.path.dirname(page).removesuffix("/source")    # a chapter is read in notes/
    link = os.path.relpath(path, folder or ".")
    text = "| step | kernel | asked of HBM | through L2 | through DRAM | workspace | time | TFLOP/s |\n"
    text += "|---|---|--:|--:|--:|--:|--:|--:|\n"
    for r in rows:
        time = f"{float(r['time_us']) / 1000:.3g} ms" if r["time_us"] else ""
        speed = f"{float(r['TFLOPs']):.3g}" if r["TFLOPs"] else ""
        text += (f"| {r['step']} | {r['kernel']} | {total(r, 'asked_')} | {total(r, 'L2_')} | "
                 f"{total(r, 'DRAM_')} | {bytes_text(int(r['workspace']))} | {time} | {speed} |\n")
    problems = {tuple(r[c] for c in PROBLEM) for r in rows}
    if len(problems) != 1:
        raise ValueError(f"{len(problems)} problems in one ladder")
    r = rows[0]
    least = bytes_text(int(r["compulsory"]))
    text += (f"\n{r['device']}, driver {r['driver']}, {r['date']}: B {r['batch']}, H {r['heads']}, "
             f"N {r['seqlen_q']}, d {r['head_dim']}, {r['dtype']}, "
             f"{'causal' if r['causal'] == '1' else 'no mask'}; reading each input and writing each output once "
             f"would be {least} ([all columns, with the commands]({link})).\n")
    return text


HEADINGS = {"seqlen_q": "N", "seqlen": "N", "head_dim": "d", "smem_limit": "M (bytes)"}
TABLE = re.compile(r"(\S+)( .*)? : rows (\w+), columns (\w+) : (.+) \| (.+)")


def in_order(rows, column, conditions):
    """The values of a column: as a condition lists them, else as they come in the file."""
    listed = re.search(rf"\b{column}=(\S*,\S*)", conditions or "")
    return listed[1].split(",") if listed else list(dict.fromkeys(row[column] for row in rows))


def pivot(rows, down, across, wanted, style):
    """{(value down, value across): text}; rows without the number are left out."""
    cells = {}
    for row in rows:
        at = row[down], row[across]
        if at in cells:
            raise ValueError(f"two rows have {down} {at[0]}, {across} {at[1]}")
        if row.get("result", "ok") == "ok":
            cells[at] = styled(float(evaluate(row, wanted)), style)
    return cells


def table(text):
    parts = TABLE.fullmatch(" ".join(text.split()))
    if not parts:
        raise ValueError("not FILE CONDITION... : rows COLUMN, columns COLUMN : EXPRESSION | FORMAT")
    path, conditions, down, across, wanted, style = parts.groups()
    rows = choose(path, conditions)
    cells = pivot(rows, down, across, wanted, style)
    columns = in_order(rows, across, conditions)
    heads = (f"{HEADINGS[across]} = {c}" if across in HEADINGS else c for c in columns)
    out = f"| {HEADINGS.get(down, down)} | {' | '.join(heads)} |\n|--:|{'--:|' * len(columns)}\n"
    for value in in_order(rows, down, conditions):
        out += f"| {value} | {' | '.join(cells.get((value, c), '–') for c in columns)} |\n"
    return out


def fill(match, page):
    start, kind, what, _, end = match.groups()
    try:
        text = run(what) if kind == "run" else table(what) if kind == "table" else ladder(what, page)
    except ValueError as error:
        sys.exit(f"{page}: {kind}: {what}: {error}")
    return start + text + end


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
