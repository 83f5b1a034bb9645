#!/usr/bin/python3
r"""Makes a book of the chapters notes/*.md: they quote code and numbers by name, and copy neither.

    notes/book.py build/book    writes each chapter, filled in, and all as one page, book.html
    notes/book.py --check       writes nothing; each mistake is one line, and the exit status 1

notes/README.md is the front page. The chapters that it links to are the book, in that order.

A paragraph that holds nothing but the name of a region stands for its source:

    {{step00_naive/attention.cu#softmax}}

A region lies between the lines `//> softmax` and `//< softmax` of the file; in Python files and
Makefiles `#> softmax` and `#< softmax`. Regions may nest: the markers within are left out. Every
region in step*/ and common/ has to be quoted somewhere.

Within a sentence, {{csv ...}} stands for one number of a CSV file. Conditions choose its row, and
exactly one row must match. Then, after a colon, comes the column; after a bar, how to write it.
With LADDER for a file that has one row for each kernel:

    {{csv LADDER kernel=naive : asked_load | bytes}}      5.24 TB
    {{csv LADDER kernel=naive : asked_load | integer}}    5,235,565,133,824
    {{csv LADDER kernel=naive : time_us | ms}}            616 ms; | us likewise
    {{csv LADDER kernel=naive : of_bar_O | percent}}      13.9%
    {{csv LADDER kernel=naive : TFLOPs | %.2f}}           0.89
    {{csv LADDER kernel=naive : seqlen_q}}                4096, as it stands in the file

Instead of a column there may be arithmetic (+ - * / and parentheses) with several, always with a
format. One part of a cell such as "scores:549753.66;softmax:6903.49" is a column too, with a dot.
`over` divides by a number of another row or file. A condition with spaces is put in quotes:

    {{csv LADDER kernel=naive : (asked_load + asked_store) / compulsory | %.0f}}
    {{csv LADDER kernel=naive : launch_us.scores / time_us | percent}}
    {{csv LADDER kernel=naive : time_us over csv LADDER kernel=tiled : time_us | %.1f}}
    {{csv LADDER "device=NVIDIA H200" : date}}

A file with a column `round` has several measurements of the same thing; its numbers are their medians.

Mathematics is TeX, as GitHub shows it: $...$ in a sentence, $$...$$ displayed. Matplotlib draws it,
which knows a part of TeX (see markdown.py).

A chapter says below its title, for those who find it with its {{...}}, where to read it filled in.
There the paragraph (UNFILLED) is left out.
"""
import functools
import glob
import os
import re
import sys
import textwrap

from cells import number
from markdown import CODE, HEADING, MATH, TARGET, VERBATIM, Page, slug

FRONT = "notes/README.md"
errors = []    # lines to print


def complain(where, what):
    errors.append(f"{where}: {' '.join(what.split())}")


@functools.lru_cache(maxsize=None)
def read(path):
    with open(path) as file:
        return file.read()


# ---- regions of source files ---------------------------------------------------------------------

LANGUAGES = {".c": "c", ".h": "c", ".cu": "cuda", ".cuh": "cuda", ".cpp": "cpp", ".py": "python",
             ".mk": "make", "Makefile": "make"}


def language(path):
    return LANGUAGES.get(os.path.splitext(path)[1] or os.path.basename(path), "")


def comment_mark(kind):
    return "//" if kind in ("c", "cuda", "cpp") else "#"


@functools.lru_cache(maxsize=None)
def regions(path):
    """{name: text} of the regions of a file, without markers and common indentation."""
    marker = re.compile(rf"\s*{comment_mark(language(path))}([<>])\s*([\w-]+)\s*")
    found, opened = {}, []    # lines by name; names that are open, the innermost last
    for line in read(path).splitlines():
        mark = marker.fullmatch(line)
        if not mark:
            for name in opened:
                found[name].append(line)
        elif mark[1] == ">":
            if mark[2] in found:
                complain(path, f"region {mark[2]} is defined twice")
            found[mark[2]] = []
            opened.append(mark[2])
        elif mark[2] not in opened:
            complain(path, f"region {mark[2]} is closed but not opened")
        else:
            while opened[-1] != mark[2]:
                complain(path, f"region {opened.pop()} is opened but never closed")
            opened.pop()
    for name in opened:
        complain(path, f"region {name} is opened but never closed")
    return {name: textwrap.dedent("\n".join(lines)).strip("\n") for name, lines in found.items()}


def quote(path, name, folder):
    """The region as Markdown: a caption (CAPTION finds it again), then the code."""
    if not os.path.isfile(path):
        raise ValueError("there is no such file")
    if name not in regions(path):
        raise ValueError("there is no such region")
    return (f"*{name}* in [`{path}`]({os.path.relpath(path, folder)}):\n\n"
            f"```{language(path)}\n{regions(path)[name]}\n```")


def check_unused(quoted):
    files = [f for top in ("step*", "common") for f in glob.glob(f"{top}/**", recursive=True)]
    for path in sorted(f for f in files if language(f) and os.path.isfile(f)):
        for name in regions(path):
            if (path, name) not in quoted:
                complain(path, f"region {name} is quoted by no chapter")


# ---- from a chapter to Markdown that stands alone ------------------------------------------------

QUOTE = r"\{\{(?P<quote>[^{}]+)\}\}"
TOKEN = re.compile(rf"{CODE}|{MATH}|\\.|{QUOTE}|{TARGET}", re.S)
UNFILLED = re.compile(r"^\*\(Numbers and code are filled in by [^\n]*\)\*\n\n", re.M)
REGION = re.compile(r"(\n?)( *)\{\{([^{}#\s]+)#([^{}#\s]+)\}\}(\n?)")


@functools.lru_cache(maxsize=None)
def anchors(path):
    lines, taken = VERBATIM.sub("", read(path)).splitlines(), {}
    return {slug(m[2], taken) for m in map(HEADING.fullmatch, lines) if m}


class Chapter:
    """One page of Markdown: its quotes are resolved, and its links lead from `folder`."""

    def __init__(self, path, folder, chapters):
        self.path, self.folder, self.chapters = path, folder, chapters
        self.name = os.path.splitext(os.path.basename(path))[0]
        self.quoted = set()    # (file, region)
        self.text = self.expand(UNFILLED.sub("", read(path)))

    def complain(self, what):
        complain(self.path, what)

    def expand(self, text):
        """All but fenced code and comments, paragraph by paragraph."""
        out, end = "", 0
        for verbatim in VERBATIM.finditer(text):
            out += self.paragraphs(text[end:verbatim.start()]) + verbatim[0]
            end = verbatim.end()
        return out + self.paragraphs(text[end:])

    def paragraphs(self, text):
        return "".join(map(self.paragraph, re.split(r"(\n\s*\n)", text)))

    def paragraph(self, text):
        region = REGION.fullmatch(text)
        if not region:
            return TOKEN.sub(self.token, text)
        before, indent, path, name, after = region.groups()
        self.quoted.add((path, name))
        try:
            return before + textwrap.indent(quote(path, name, self.folder), indent) + after
        except ValueError as error:
            self.complain(f"{text.strip()}: {error}")
            return text

    def token(self, found):
        """What stands for a {{...}} or the target of a link; all else is left as it is."""
        try:
            if found["quote"]:
                if re.fullmatch(r"\s*[^#\s]+#\S+\s*", found["quote"]):
                    raise ValueError("a region has to be alone in its paragraph")
                return number(" ".join(found["quote"].split()))
            if found["link"]:
                return f"]({self.target(found['link'])})"
        except (ValueError, TypeError, SyntaxError, ZeroDivisionError) as error:
            self.complain(f"{found['link'] or found[0]}: {error}")
        return found[0]

    def target(self, link):
        """Where a link leads, seen from the folder of the book."""
        if re.match(r"[a-z]+:", link):
            return link
        path, mark, anchor = link.partition("#")
        here = os.path.dirname(self.path)
        file = os.path.normpath(os.path.join(here, path)) if path else self.path
        if not os.path.exists(file):
            raise ValueError(f"there is no {file}")
        if mark and not (file.endswith(".md") and anchor in anchors(file)):
            raise ValueError(f"there is no heading #{anchor} in {file}")
        return (os.path.basename(file) if file in self.chapters
                else os.path.relpath(file, self.folder)) + mark + anchor


# ---- the page -----------------------------------------------------------------------------------

STYLE = os.path.join(os.path.dirname(__file__), "book.css")
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{contents}
<main>
{sections}
</main>
</body>
</html>
"""


def contents(pages):
    """The chapters' titles, and under each its headings of the second level."""
    out = "<nav>\n<ol>\n"
    for page in pages:
        parts = [f'<li><a href="#{anchor}">{text}</a></li>'
                 for level, anchor, text in page.headings if level == 2]
        inner = "\n".join(["<ol>", *parts, "</ol>"]) if parts else ""
        out += f'<li><a href="#{page.chapter.name}">{page.title()}</a>{inner}</li>\n'
    return out + "</ol>\n</nav>"


def book(pages):
    sections = (f'<section id="{page.chapter.name}">\n{page.html}\n</section>' for page in pages)
    return PAGE.format(title=re.sub("<[^>]*>", "", pages[0].title()), style=read(STYLE),
                       contents=contents(pages), sections="\n".join(sections))


# ---- the whole -----------------------------------------------------------------------------------

def order():
    """The front page and the chapters that it links to, each once."""
    links = re.findall(r"\]\((\w[\w.-]*\.md)\)", VERBATIM.sub("", read(FRONT)))
    chapters = [FRONT, *dict.fromkeys(f"notes/{link}" for link in links)]
    for path in sorted(set(glob.glob("notes/*.md")) - set(chapters)):
        complain(path, f"{FRONT} has no link to this chapter")
    # Of a link to nothing it is Chapter.target that complains.
    return [path for path in chapters if os.path.isfile(path)]


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def main(words):
    if len(words) != 1 or not os.path.isfile(FRONT):
        sys.exit("usage, where notes/ is: notes/book.py FOLDER | --check")
    folder = "build/book" if words[0] == "--check" else words[0]
    paths = order()
    chapters = [Chapter(path, folder, paths) for path in paths]
    check_unused(set().union(*(chapter.quoted for chapter in chapters)))
    pages = [Page(chapter) for chapter in chapters]
    if errors:
        sys.exit("\n".join(dict.fromkeys(errors)))
    if words[0] == "--check":
        return
    os.makedirs(folder, exist_ok=True)
    for chapter in chapters:
        write(f"{folder}/{os.path.basename(chapter.path)}", chapter.text)
    write(f"{folder}/book.html", book(pages))


if __name__ == "__main__":
    main(sys.argv[1:])
