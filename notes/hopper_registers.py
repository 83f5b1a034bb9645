#!/usr/bin/python3
"""The registers that step06's FP8 kernels use, by tiling: make registers

    notes/hopper_registers.py build/gpu/step06_hopper_tma_fp8/7_fp8.o … >notes/results/registers_fp8.csv

What cuobjdump calls their registers is what the launch takes for each thread; setmaxnreg then takes
from the producer and gives to the consumers. So this looks for the highest register that the code
names, and whether it stores any to local memory.
"""
import re
import subprocess
import sys

KERNEL = re.compile(r"Function : void step06_\d::(\w+)<step06_fp8::tiling<(\d+), (\w+), (\d+), (\d+)> >")


def kernels(path):
    """Each kernel's match and the lines of its code."""
    code = subprocess.run(["cuobjdump", "-sass", path], capture_output=True, text=True, check=True).stdout
    text = subprocess.run(["c++filt"], input=code, capture_output=True, text=True, check=True).stdout
    for part in re.split(r"(?=Function : )", text)[1:]:
        if match := KERNEL.match(part):
            yield match, [line for line in part.splitlines() if ";" in line]


def main():
    version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    rows = []
    for path in sys.argv[1:]:
        for match, lines in kernels(path):
            name, D, causal, consumers, Bc = match.groups()
            highest = max(int(r) for line in lines for r in re.findall(r"\bR(\d+)\b", line))
            spilled = any(re.search(r"\bSTL\b", line) for line in lines)
            rows.append((name.replace("_", "-"), int(D), causal, int(consumers), int(Bc), highest + 1, int(spilled)))
    print(f"# nvcc {re.search(r'V([0-9.]+)', version)[1]}, sm_90a")
    print("kernel,D,causal,consumers,Bc,registers,spilled")
    for row in sorted(rows):
        print(",".join(map(str, row)))


main()
