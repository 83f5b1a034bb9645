"""Numbers of the CSV files that the harness writes, for chapters (book.py) and tables (fill.py).

The language of {{csv ...}} is explained at the top of book.py.
"""
import csv
import os
import re
import shlex
import statistics


def read_csv(path):
    with open(path) as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def bytes_text(value):
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
        value /= 1000


def digits(x):
    return f"{x:.3g}" if abs(x) < 999.5 else f"{x:,.0f}"


FORMATS = {
    "bytes": bytes_text,
    "integer": lambda x: f"{x:,.0f}",
    "ms": lambda x: f"{digits(x / 1000)} ms",    # of a column in microseconds
    "us": lambda x: f"{digits(x)} µs",
    "percent": lambda x: f"{digits(100 * x)}%",
}
COLUMN = re.compile(r"(?<![\w.])[A-Za-z_][\w.]*")


def cell(row, name):
    """The text in a column of a row; of `column.part` that part of the cell's a:1;b:2."""
    column, _, part = name.partition(".")
    if column not in row:
        raise ValueError(f"there is no column {column}")
    if not part:
        return row[column]
    parts = dict(pair.split(":") for pair in row[column].split(";") if ":" in pair)
    if part not in parts:
        raise ValueError(f"there is no {part} in column {column}")
    return parts[part]


def filled(row, name):
    text = cell(row, name)
    if not text:
        raise ValueError("the cell is empty")
    return text


def one_of_all_rounds(rows):
    """Where a file has a column `round`: rows that agree in all columns before it are one, and what was
    measured, the numbers after it, are medians."""
    if not rows or "round" not in rows[0]:
        return rows
    names = list(rows[0])
    before, after = names[:names.index("round")], names[names.index("round") + 1:]
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in before), []).append(row)
    return [{**group[0], **{name: median(group, name) for name in after}} for group in groups.values()]


def median(rows, name):
    try:
        return repr(statistics.median(float(row[name]) for row in rows))
    except ValueError:    # no number, such as the command
        return rows[0][name]


def choose(path, conditions):
    """The rows of a file that meet all conditions: column=value, or column=one,or,another."""
    if not os.path.isfile(path):
        raise ValueError(f"there is no file {path}")
    rows = read_csv(path)
    for condition in shlex.split(conditions or ""):
        column, _, values = condition.partition("=")
        rows = [row for row in rows if cell(row, column) in (values, *values.split(","))]
    return one_of_all_rounds(rows)


def evaluate(row, wanted):
    """A cell's text, or a number calculated from several."""
    if COLUMN.fullmatch(wanted):
        return filled(row, wanted)
    return calculate(COLUMN.sub(lambda name: repr(float(filled(row, name[0]))), wanted))


CSV = re.compile(r"csv (\S+)( .*)? : (.+)")


def select(text):
    """What `csv FILE CONDITIONS : COLUMNS` stands for."""
    parts = CSV.fullmatch(text)
    if not parts:
        raise ValueError("neither FILE#REGION nor csv FILE COLUMN=VALUE ... : COLUMN | FORMAT")
    path, conditions, wanted = parts.groups()
    rows = choose(path, conditions)
    if len(rows) != 1:
        raise ValueError(f"{len(rows) or 'no'} rows match")
    return evaluate(rows[0], wanted)


def calculate(sums):
    if not re.fullmatch(r"[\d.e+*/() -]+", sums):    # eval sees numbers, and nothing else
        raise ValueError(f"cannot calculate {sums}")
    return eval(sums)


def styled(value, style):
    if style not in FORMATS and not style.startswith("%"):
        raise ValueError(f"{style} is no format")
    return FORMATS[style](value) if style in FORMATS else style % value


def number(text):
    """What {{text}} stands for in a sentence."""
    text, _, style = (part.strip() for part in text.partition(" | "))
    values = [select(part) for part in text.split(" over ")]
    if not style and len(values) == 1 and isinstance(values[0], str):
        return values[0]
    if not style:
        raise ValueError("a calculated number needs a format")
    value = float(values[0])
    for divisor in values[1:]:
        value /= float(divisor)
    return styled(value, style)
