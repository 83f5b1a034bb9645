"""Does fp8_table.py measure what it says? On small shapes, with step06's 16-bit kernel and the FP8 baseline, which
tests/variants.c offers as a kernel.

    python3 tests/test_fp8_table.py build/sim/step06 build/sim/variants
"""
import csv
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np

import fp8_table

STEP06, VARIANTS = sys.argv[1:3]
TENSOR, BLOCK, ROTATED, BOTH = [options for _, options, _ in fp8_table.ROWS[2:]]


def arguments_of(program, *words):
    return fp8_table.parse([program, *words])


def rmse(arguments, options):
    return float(fp8_table.result_of(arguments, "", options, 0)["rmse"])


class Table(unittest.TestCase):
    def test_standard_attention_is_off_where_fp16_rounds(self):
        with tempfile.TemporaryDirectory() as folder:
            rng = np.random.default_rng(1)
            for name in "QKV":
                np.save(f"{folder}/{name}.npy", rng.standard_normal((1, 3, 50, 16)).astype(np.float16).astype(np.float32))
            squares, elements = fp8_table.squares_of_standard(folder)
            self.assertEqual(elements, 3 * 50 * 16)
            self.assertTrue(1e-5 < (squares / elements) ** 0.5 < 1e-3)
            self.assertAlmostEqual(fp8_table.squares_of_standard(folder, rows_at_once=7)[0], squares, places=9)
            np.save(f"{folder}/V.npy", np.ones((1, 3, 50, 16), np.float32))
            np.save(f"{folder}/K.npy", np.zeros((1, 3, 50, 16), np.float32))  # each weight is fp16 of 1/50
            squares, _ = fp8_table.squares_of_standard(folder)
            self.assertAlmostEqual(squares / elements, (float(np.float16(50 * float(np.float16(1 / 50)))) - 1) ** 2)

    def test_flash_is_nearer_than_standard(self):
        arguments = arguments_of(STEP06, "-n", "128", "--seeds", "1")
        self.assertLess(rmse(arguments, ["--dtype", "fp16"]), rmse(arguments, None))

    def test_rotation_is_what_helps_against_outliers(self):
        arguments = arguments_of(VARIANTS, "-n", "256", "--seeds", "1", "--fp8-kernel", "fp8-on-host")
        tensor, block, rotated, both = (rmse(arguments, options) for options in (TENSOR, BLOCK, ROTATED, BOTH))
        self.assertLess(rotated, tensor)
        self.assertLess(both, block)

    def test_seeds_are_put_together_by_their_squares(self):
        arguments = arguments_of(VARIANTS, "-n", "64", "--seeds", "3", "--fp8-kernel", "fp8-on-host")
        squares = [fp8_table.measure(arguments, BOTH, seed)[0] for seed in (1, 2, 3)]
        row = fp8_table.result_of(arguments, "both", BOTH, 9.1e-3)
        self.assertEqual(row["rmse"], f"{(sum(squares) / 3) ** 0.5:.4g}")
        self.assertEqual(row["baseline_rmse"], row["rmse"])  # the kernel is the baseline
        self.assertEqual((row["kernel"], row["fp8_sums"], row["seqlen"]), ("fp8-on-host", "exact", 64))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "table.csv")
            fp8_table.write(path, [row])
            with open(path) as file:
                [written] = csv.DictReader(file)
        self.assertEqual((written["paper_rmse"], written["commit"]), ("0.0091", ""))
        self.assertEqual(written["command"], f"tests/fp8_table.py {VARIANTS} -n 64 --seeds 3 --fp8-kernel fp8-on-host")

    def test_the_command_is_without_where_the_table_goes(self):
        arguments = arguments_of(STEP06, "-n", "64", "--commit", "abc", "--out", "table.csv", "--seeds", "1")
        self.assertEqual(arguments.command, f"tests/fp8_table.py {STEP06} -n 64 --seeds 1")
        self.assertEqual(arguments.commit, "abc")

    def test_what_cannot_be_run_is_said_in_a_line(self):
        for words in (["--fp8-kernel", "nonsuch"], ["--kernel", "nonsuch"], ["-d", "12"]):
            done = subprocess.run([sys.executable, fp8_table.__file__, STEP06, "-n", "64", "--seeds", "1", *words],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, words)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(words[1], done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
