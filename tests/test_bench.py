"""What tests/bench.sh does with a card's measurements, in a folder of its own, with programs of ours in place of the
ladder and of Python with PyTorch.

    python3 tests/test_bench.py
"""
import os
import subprocess
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TITLE = "date,kernel,smem_limit,result,why,command"
ROW = '2026-01-01,naive,232448,{},"","{}"'
COMMAND, PEERS = "build/gpu/ladder -n 4", "tests/peers.py --kernels fa2"


class Bench(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        for path in "tests", "build/gpu", "bin", "notes/results":
            os.makedirs(self.path(path))
        for name in "bench.sh", "measured.awk":
            os.symlink(os.path.join(HERE, name), self.path(f"tests/{name}"))
        self.write("notes/results/h200_ladder.csv", TITLE, ROW.format("ok", COMMAND))

    def tearDown(self):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, *lines):
        with open(self.path(name), "w") as file:
            file.writelines(line + "\n" for line in lines)
        os.chmod(self.path(name), 0o755)

    def read(self, name):
        with open(self.path(name)) as file:
            return file.read().splitlines()

    def ladder(self, *rows, status=0):
        """What build/gpu/ladder prints, and its exit status."""
        self.write("rows", TITLE, *rows)
        self.write("build/gpu/ladder", "#!/bin/sh", "cat rows", f"exit {status}")

    def bench(self, *names, card="a100"):
        environment = dict(os.environ, PATH=self.path("bin") + ":" + os.environ["PATH"])
        return subprocess.run(["tests/bench.sh", card, "abc", "build", *names], cwd=self.folder.name,
                              env=environment, capture_output=True, text=True)

    def test_rows_that_ran_with_the_commit(self):
        self.ladder(ROW.format("ok", COMMAND), ROW.format("unsupported", COMMAND), ROW.format("impossible", COMMAND))
        self.assertEqual(self.bench("ladder").returncode, 0)
        self.assertEqual(self.read("notes/results/a100_ladder.csv"),
                         [TITLE + ",commit", ROW.format("ok", COMMAND) + ",abc"])

    def test_a_word_in_a_text_is_no_result(self):
        row = '2026-01-01,naive,232448,ok,"it is ,unsupported, here","x"'
        self.ladder(row)
        self.bench("ladder")
        self.assertEqual(self.read("notes/results/a100_ladder.csv")[1:], [row + ",abc"])

    def test_nothing_is_lost(self):
        before = self.read("notes/results/h200_ladder.csv")
        for status in 1, 127, 139, 2, 3:    # a wrong result; not there; a crash; not for this card, which leaves no rows
            self.ladder(*([ROW.format("ok", COMMAND)] if status > 100 else []), status=status)
            done = self.bench("ladder", card="h200")
            self.assertNotEqual(done.returncode, 0, status)
            self.assertIn("is left as it was", done.stderr)
            self.assertEqual(self.read("notes/results/h200_ladder.csv"), before, status)

    def test_without_pytorch_the_rest_is_measured(self):
        self.write("notes/results/h200_ladder.csv", TITLE, ROW.format("ok", PEERS), ROW.format("ok", COMMAND))
        self.write("bin/python3", "#!/bin/sh", "exit 3")
        self.ladder(ROW.format("ok", COMMAND))
        done = self.bench("ladder")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("left out", done.stdout)
        self.assertEqual(len(self.read("notes/results/a100_ladder.csv")), 2)

    def test_names_are_looked_at_before_anything_is_measured(self):
        self.ladder(ROW.format("ok", COMMAND))
        self.write("notes/results/h200_memory.csv", "date,bytes", "2026-01-01,5")
        for name in "nonsuch", "memory":    # the second has no commands
            done = self.bench("ladder", name)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), done.stderr)
            self.assertIn(f"BENCH={name}", done.stderr)
            self.assertFalse(os.path.exists(self.path("notes/results/a100_ladder.csv")))

    def test_called_without_words(self):
        done = subprocess.run([self.path("tests/bench.sh")], capture_output=True, text=True)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1))


if __name__ == "__main__":
    unittest.main()
