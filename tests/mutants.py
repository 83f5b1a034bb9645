"""Would the tests notice a fault in a kernel? Plants one fault at a time, and sees whether they fail.

    python3 tests/mutants.py tests/mutants/*.txt        (`make mutants` builds what this needs, first)

A list names a kernel file, the kernels in it that are to be tested (all that are linked in, where
there is no such line) and then its mutants:

    file step00_naive/attention.cu
    kernel naive

    the scale is dropped
    - visible ? s.scale * dot
    + visible ? dot

    LSE takes l_safe
    - m + logf(l);
    + m + logf(l_safe);
    equivalent: they differ only where l is 0, and there m is -infinity.

That is: a name; the old text, which must occur in the file exactly once; the new text. What follows
"- " and "+ " counts to the last blank, and text of several lines takes several of them. A mutant
with a reason after `equivalent:` cannot be told from the original, and must survive. Lines that
start with # are comments. Two rules: a mutant compiles, and a loop in it ends (all that lanes do is
noted down, so one that doesn't would fill the memory).

Several files can follow one another in a list. The mutants of a header, of a step's or of common/,
are tried in a kernel that includes it:

    file common/shape.h in step00_naive/attention.cu
    kernel naive

The fault goes into a copy of the file; the copy, or an unchanged one of the kernel that finds the
faulty header first, is compiled and linked with the tests that are there already, and the tests of
the group `kernels` run, and those of the step's own group where there is a tests/test_stepNN.c, up
to the first failure. When they fail, crash or take too long, the mutant is noticed, as it should be.
A survivor means that a test is missing.

With --check before the lists, nothing is compiled or run: do the old texts still occur in the files,
each once? `make test` asks so, and a change to a kernel takes its mutants along.

AT_A_TIME=1 in the environment tries one mutant at a time instead of two. PART=2/3 tries every third one, from the
second on: CI has no time for all, and takes another part with each commit.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

BUILD = os.environ.get("BUILD", "build")
TESTS = "@(kernels/all_are_right*|step*/*)"
AT_A_TIME = int(os.environ.get("AT_A_TIME", 2))
PART = os.environ.pop("PART", "") or "1/1"  # not for the tests, which know a PART, too
# A make or a test that runs inside `make mutants` is no part of it.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}


LEGEND = """A mutant is a kernel with one fault planted in it, and the tests should fail on it. One that is "noticed" was, by the
complaint that follows; one that "survives, as it must" was not, since the fault changes no result, for the reason given.
"""
MOST = 180    # characters of a complaint or a reason


class ListError(Exception):
    pass


# ---- the lists -----------------------------------------------------------------------------------


@dataclass
class Mutant:
    file: str          # that the fault is in
    kernel_file: str   # that it is tried in: the same, or one that includes it
    kernels: str       # to be tested, "a,b"; empty: all
    name: str
    old: list = field(default_factory=list)    # lines
    new: list = field(default_factory=list)
    equivalent: str = ""                       # why, or empty

    def folder(self):
        return Path(BUILD) / "mutants" / re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-")

    def tried_in(self):
        return self.file, self.kernel_file, self.kernels

    def source(self):
        """The file's text with the fault in it."""
        text, old = Path(self.file).read_text(), "\n".join(self.old)
        if not old:
            return text
        if text.count(old) != 1:
            raise ListError(f"{self.name}: the old text occurs {text.count(old)} times in {self.file}, "
                            "not once")
        return text.replace(old, "\n".join(self.new))


def read_list(path):
    file, kernel_file, kernels, file_is_new, mutants = None, None, "", False, []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        last = mutants[-1] if mutants and not file_is_new else None
        if not line.strip() or line.startswith("#"):
            continue
        elif line.startswith("file "):
            file, *within = line[5:].strip().split(" in ")
            kernel_file, kernels, file_is_new = (within or [file])[0], "", True
        elif line.startswith("kernel ") and file_is_new and not kernels:
            kernels = ",".join(line[7:].split())
        elif line.startswith("-") and last:
            last.old.append(line[2:])
        elif line.startswith("+") and last:
            last.new.append(line[2:])
        elif line.startswith("equivalent: ") and last:
            last.equivalent = line[len("equivalent: "):]
        elif file and line[0].isalnum():
            mutants.append(Mutant(file, kernel_file, kernels, line.strip()))
            file_is_new = False
        else:
            raise ListError(f"{path}:{number}: what is this? {line}")
    check_list(path, mutants)
    return mutants


def check_list(path, mutants):
    folders = [m.folder() for m in mutants]
    for m in mutants:
        if not m.old or m.old == m.new:
            raise ListError(f"{path}: {m.name}: no old text, or none that changes")
        if folders.count(m.folder()) > 1:
            raise ListError(f"{path}: {m.name}: this name occurs twice")
    stale = [message for m in mutants if (message := stale_text(m))]
    if stale:
        raise ListError("\n".join(f"{path}: {message}" for message in stale))


def stale_text(mutant):
    """None if the fault can be planted, else why it cannot."""
    try:
        mutant.source()
    except (ListError, OSError) as error:
        return str(error)
    return None


# ---- one mutant ----------------------------------------------------------------------------------


def copy_sources(mutant):
    """The kernel, and the file with the fault in it. A faulty header takes the other headers of its
    folder along as links: one of them that includes it must find it, not the original beside itself."""
    folder, file = mutant.folder(), Path(mutant.file)
    shutil.rmtree(folder, ignore_errors=True)
    for path in {file, Path(mutant.kernel_file)}:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / path)
    (folder / file).write_text(mutant.source())
    for header in file.parent.glob("*.h") if file.suffix == ".h" else []:
        if header != file:
            (folder / header).symlink_to(header.resolve())


def build(mutant):
    copy_sources(mutant)
    command = ["make", "-s", f"{mutant.folder()}/run_tests", f"FILE={mutant.kernel_file}",
               f"BUILD={BUILD}"]
    made = subprocess.run(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    if made.returncode:
        raise ListError(f"{mutant.name}: does not compile\n{made.stdout}")


def run_tests(mutant, limit):
    """None if the tests pass, else why they don't, in a few words."""
    environment = {**ENVIRONMENT, "CRITERION_FAIL_FAST": "1"}
    if mutant.kernels:
        environment["KERNEL"] = mutant.kernels
    tests = subprocess.Popen([mutant.folder() / "run_tests", "--filter", TESTS],
                             env=environment, text=True, errors="replace", stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, start_new_session=True)
    try:
        output, _ = tests.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(tests.pid, signal.SIGKILL)    # each test runs in a process of its own
        tests.communicate()
        return f"still running after {limit:.0f} s"
    if tests.returncode < 0:    # a crash inside of a test leaves the program around it alive
        raise ListError(f"{mutant.name}: the tests were ended from outside, by signal {-tests.returncode}")
    return first_complaint(output) if tests.returncode else None


def first_complaint(output):
    complaint = re.search(r"--kernel .*?: (.*)", output) or re.search(r"\[----\]   (\S.*)", output)
    return complaint[1] if complaint else "crashed"


def shorten(text):
    """At most MOST characters of it, whole words."""
    return text if len(text) <= MOST else text[:MOST - 3].rsplit(" ", 1)[0] + " ..."


def verdict(mutant, complaint):
    """Whether all is as it should be, and a line about it. `complaint`: of the tests; None if they have passed."""
    if complaint is None and mutant.equivalent:
        return True, f"survives, as it must: {mutant.name}: {shorten(mutant.equivalent)}"
    if complaint is None:
        return False, f"SURVIVES  {mutant.name}: no test notices it"
    if mutant.equivalent:
        return False, f"NOTICED   {mutant.name}, though it is called equivalent: {shorten(complaint)}"
    return True, f"noticed   {mutant.name}: {shorten(complaint)}"


def try_mutant(mutant, limit):
    try:
        build(mutant)
        complaint = run_tests(mutant, limit)
    except ListError as error:
        return False, f"ERROR     {error}"
    shutil.rmtree(mutant.folder())
    return verdict(mutant, complaint)


# ---- all of them ---------------------------------------------------------------------------------


def time_without_fault(file, kernel_file, kernels):
    """Seconds that the tests take on an unchanged copy, which they must pass."""
    original = Mutant(file, kernel_file, kernels, "no fault")
    build(original)
    start = time.monotonic()
    complaint = run_tests(original, 1000)
    if complaint:
        raise ListError(f"{file}: the tests fail without any fault: {complaint}")
    return time.monotonic() - start


def check(paths):
    """Complains about every list that does not fit the sources, and fails then."""
    complaints = []
    for path in paths:
        try:
            read_list(path)
        except (ListError, OSError) as error:
            complaints.append(str(error))
    sys.exit("\n".join(complaints) or 0)


def part_of(mutants):
    """Those of PART."""
    match = re.fullmatch("([0-9]+)/([0-9]+)", PART)
    part, parts = map(int, match.groups()) if match else (0, 0)
    if not 1 <= part <= parts <= len(mutants):
        raise ListError(f"PART={PART}: should be 1/3, 2/3 or 3/3, or of another number of parts, up to {len(mutants)}")
    return mutants[part - 1::parts]


def summary(passed, failed, seconds):
    if not failed:
        return f"The tests are good enough for all {passed} mutants ({seconds:.0f} s): each that changes a result is noticed."
    return (f"{failed} of {passed + failed} mutants are not as they should be ({seconds:.0f} s), in the lines that begin "
            "with capitals. SURVIVES: a test is missing.")


def main():
    if not sys.argv[1:] or sys.argv[1:] == ["--check"]:
        sys.exit("usage: python3 tests/mutants.py [--check] LIST...")
    if sys.argv[1] == "--check":
        check(sys.argv[2:])
    start, passed, failed = time.monotonic(), 0, 0
    print(LEGEND, flush=True)
    try:
        mutants = part_of([m for path in sys.argv[1:] for m in read_list(path)])
        limit = {of: 10 + 10 * time_without_fault(*of) for of in {m.tried_in() for m in mutants}}
    except (ListError, OSError) as error:
        sys.exit(f"{error}\n0 passed, 1 failed")
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for right, line in pool.map(lambda m: try_mutant(m, limit[m.tried_in()]), mutants):
            print(line, flush=True)
            passed, failed = passed + right, failed + (not right)
    print(summary(passed, failed, time.monotonic() - start))
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
