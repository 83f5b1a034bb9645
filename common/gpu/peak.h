// peak.h - loops of matrix products and nothing else, whose speed is the peak of the matrix units.
#ifndef PEAK_H
#define PEAK_H

// Each launches its loop on all multiprocessors, on the default stream, and returns how many FLOPs
// that makes. The operands are random numbers: with zeros the units would need less power, and a
// card that is limited by its power would be faster than it ever is at work.
double peak_mma(int sm_count);             // bf16; sm_80 and newer
double peak_wgmma(int sm_count, bool fp8); // bf16 or e4m3; sm_90

#endif
