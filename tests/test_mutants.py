#!/usr/bin/python3
"""What mutants.py makes of a list and of the tests' complaints; no mutant is compiled."""
import unittest

import mutants
from mutants import Mutant, first_complaint, shorten, summary, verdict

FAULT = Mutant("a.cu", "a.cu", "", "no mask")
EQUIVALENT = Mutant("a.cu", "a.cu", "", "adds 0", equivalent="x + 0 is x.")


class Complaint(unittest.TestCase):
    def test_a_short_one_stays_whole(self):
        text = "x" * mutants.MOST
        self.assertEqual(shorten(text), text)

    def test_a_long_one_ends_with_a_whole_word(self):
        text = "fused: race at step03_fused_fwd/tiles.h:101 " + "(called at step03_fused_fwd/1_fused.cu:58) " * 5
        cut = shorten(text)
        self.assertLessEqual(len(cut), mutants.MOST)
        self.assertTrue(cut.endswith(" ..."), cut)
        for word in cut[:-4].split():
            self.assertIn(word, text.split())

    def test_it_is_what_the_tests_say_of_the_kernel(self):
        self.assertEqual(first_complaint("[----]   --kernel fused -n 3: O[0] is 1\n"), "O[0] is 1")
        self.assertEqual(first_complaint("[====] Running\n[----]   x is not y\n"), "x is not y")
        self.assertEqual(first_complaint("[====] Running\n"), "crashed")


class Verdict(unittest.TestCase):
    def test_a_fault_should_be_noticed(self):
        self.assertEqual(verdict(FAULT, "O[0] is 1"), (True, "noticed   no mask: O[0] is 1"))
        self.assertEqual(verdict(FAULT, None), (False, "SURVIVES  no mask: no test notices it"))

    def test_what_is_equivalent_should_survive_and_says_why(self):
        self.assertEqual(verdict(EQUIVALENT, None), (True, "survives, as it must: adds 0: x + 0 is x."))
        right, line = verdict(EQUIVALENT, "O[0] is 1")
        self.assertFalse(right)
        self.assertEqual(line, "NOTICED   adds 0, though it is called equivalent: O[0] is 1")

    def test_the_end_says_in_words_what_it_means(self):
        self.assertIn("good enough for all 7 mutants", summary(7, 0, 60.2))
        self.assertIn("2 of 9 mutants are not as they should be", summary(7, 2, 60.2))
        self.assertIn("a test is missing", summary(7, 2, 60.2))

    def test_the_legend_is_two_lines(self):
        self.assertEqual(len(mutants.LEGEND.splitlines()), 2)
        for word in ("mutant", "noticed", "survives, as it must"):
            self.assertIn(word, mutants.LEGEND)


if __name__ == "__main__":
    unittest.main()
