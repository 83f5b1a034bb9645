// dtype.h - 16-bit and 8-bit floats on the host: conversion, rounding, the spacing of numbers.
#ifndef DTYPE_H
#define DTYPE_H

#include "attn.h"

#ifdef __cplusplus
extern "C" {
#endif

// To nearest, ties to even; overflow gives infinity, and NaN stays NaN (made quiet).
uint16_t fp16_from_float(float x);
float fp16_to_float(uint16_t bits);
uint16_t bf16_from_float(float x);
float bf16_to_float(uint16_t bits);
// To nearest, ties to even; what is too large gives ±448, infinities too (the cvt instruction's
// .satfinite), and NaN gives 0x7f.
uint8_t e4m3_from_float(float x);
float e4m3_to_float(uint8_t bits);

// x as the data type holds it (ATTN_FP8: its 16-bit inputs are bf16).
float dtype_round(enum attn_dtype dtype, float x);

// Distance from |x| to the next larger number of the type: one unit in the last place around x.
// Below the smallest normal number it is the spacing of the subnormals, the same down to 0 (no
// flush to zero here). Past the largest number the spacing goes on doubling; 0 for an infinity.
double dtype_ulp(enum attn_dtype dtype, double x);

// Packs n fp32 values into dtype for the device, and back.
void dtype_pack(enum attn_dtype dtype, const float *from, void *to, uint64_t n);
void dtype_unpack(enum attn_dtype dtype, const void *from, float *to, uint64_t n);

#ifdef __cplusplus
}
#endif
#endif
