// ptx_wgmma.h - nvcc's half of wgmma_m64k16 and wgmma_m64k32 (ptx_sm90.h): lists of registers, and
// nothing else.
//
// The instruction names each of its N / 2 accumulator registers, and inline PTX numbers operands
// from 0, outputs first. So for every N there is a list of numbers, a list of operands, and the
// numbers of the inputs that follow them. The lists grow by 4 registers, as N does by 8 columns.
#ifndef PTX_WGMMA_H
#define PTX_WGMMA_H

// clang-format off
#define WGMMA_REGISTERS_8 "%0, %1, %2, %3"
#define WGMMA_REGISTERS_16 WGMMA_REGISTERS_8 ", %4, %5, %6, %7"
#define WGMMA_REGISTERS_24 WGMMA_REGISTERS_16 ", %8, %9, %10, %11"
#define WGMMA_REGISTERS_32 WGMMA_REGISTERS_24 ", %12, %13, %14, %15"
#define WGMMA_REGISTERS_40 WGMMA_REGISTERS_32 ", %16, %17, %18, %19"
#define WGMMA_REGISTERS_48 WGMMA_REGISTERS_40 ", %20, %21, %22, %23"
#define WGMMA_REGISTERS_56 WGMMA_REGISTERS_48 ", %24, %25, %26, %27"
#define WGMMA_REGISTERS_64 WGMMA_REGISTERS_56 ", %28, %29, %30, %31"
#define WGMMA_REGISTERS_72 WGMMA_REGISTERS_64 ", %32, %33, %34, %35"
#define WGMMA_REGISTERS_80 WGMMA_REGISTERS_72 ", %36, %37, %38, %39"
#define WGMMA_REGISTERS_88 WGMMA_REGISTERS_80 ", %40, %41, %42, %43"
#define WGMMA_REGISTERS_96 WGMMA_REGISTERS_88 ", %44, %45, %46, %47"
#define WGMMA_REGISTERS_104 WGMMA_REGISTERS_96 ", %48, %49, %50, %51"
#define WGMMA_REGISTERS_112 WGMMA_REGISTERS_104 ", %52, %53, %54, %55"
#define WGMMA_REGISTERS_120 WGMMA_REGISTERS_112 ", %56, %57, %58, %59"
#define WGMMA_REGISTERS_128 WGMMA_REGISTERS_120 ", %60, %61, %62, %63"
#define WGMMA_REGISTERS_136 WGMMA_REGISTERS_128 ", %64, %65, %66, %67"
#define WGMMA_REGISTERS_144 WGMMA_REGISTERS_136 ", %68, %69, %70, %71"
#define WGMMA_REGISTERS_152 WGMMA_REGISTERS_144 ", %72, %73, %74, %75"
#define WGMMA_REGISTERS_160 WGMMA_REGISTERS_152 ", %76, %77, %78, %79"
#define WGMMA_REGISTERS_168 WGMMA_REGISTERS_160 ", %80, %81, %82, %83"
#define WGMMA_REGISTERS_176 WGMMA_REGISTERS_168 ", %84, %85, %86, %87"
#define WGMMA_REGISTERS_184 WGMMA_REGISTERS_176 ", %88, %89, %90, %91"
#define WGMMA_REGISTERS_192 WGMMA_REGISTERS_184 ", %92, %93, %94, %95"
#define WGMMA_REGISTERS_200 WGMMA_REGISTERS_192 ", %96, %97, %98, %99"
#define WGMMA_REGISTERS_208 WGMMA_REGISTERS_200 ", %100, %101, %102, %103"
#define WGMMA_REGISTERS_216 WGMMA_REGISTERS_208 ", %104, %105, %106, %107"
#define WGMMA_REGISTERS_224 WGMMA_REGISTERS_216 ", %108, %109, %110, %111"
#define WGMMA_REGISTERS_232 WGMMA_REGISTERS_224 ", %112, %113, %114, %115"
#define WGMMA_REGISTERS_240 WGMMA_REGISTERS_232 ", %116, %117, %118, %119"
#define WGMMA_REGISTERS_248 WGMMA_REGISTERS_240 ", %120, %121, %122, %123"
#define WGMMA_REGISTERS_256 WGMMA_REGISTERS_248 ", %124, %125, %126, %127"

#define WGMMA_OUTPUTS_8(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define WGMMA_OUTPUTS_16(d) WGMMA_OUTPUTS_8(d), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define WGMMA_OUTPUTS_24(d) WGMMA_OUTPUTS_16(d), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define WGMMA_OUTPUTS_32(d) WGMMA_OUTPUTS_24(d), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define WGMMA_OUTPUTS_40(d) WGMMA_OUTPUTS_32(d), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define WGMMA_OUTPUTS_48(d) WGMMA_OUTPUTS_40(d), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define WGMMA_OUTPUTS_56(d) WGMMA_OUTPUTS_48(d), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define WGMMA_OUTPUTS_64(d) WGMMA_OUTPUTS_56(d), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define WGMMA_OUTPUTS_72(d) WGMMA_OUTPUTS_64(d), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define WGMMA_OUTPUTS_80(d) WGMMA_OUTPUTS_72(d), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define WGMMA_OUTPUTS_88(d) WGMMA_OUTPUTS_80(d), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define WGMMA_OUTPUTS_96(d) WGMMA_OUTPUTS_88(d), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define WGMMA_OUTPUTS_104(d) WGMMA_OUTPUTS_96(d), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define WGMMA_OUTPUTS_112(d) WGMMA_OUTPUTS_104(d), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define WGMMA_OUTPUTS_120(d) WGMMA_OUTPUTS_112(d), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define WGMMA_OUTPUTS_128(d) WGMMA_OUTPUTS_120(d), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define WGMMA_OUTPUTS_136(d) WGMMA_OUTPUTS_128(d), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define WGMMA_OUTPUTS_144(d) WGMMA_OUTPUTS_136(d), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define WGMMA_OUTPUTS_152(d) WGMMA_OUTPUTS_144(d), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define WGMMA_OUTPUTS_160(d) WGMMA_OUTPUTS_152(d), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define WGMMA_OUTPUTS_168(d) WGMMA_OUTPUTS_160(d), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define WGMMA_OUTPUTS_176(d) WGMMA_OUTPUTS_168(d), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define WGMMA_OUTPUTS_184(d) WGMMA_OUTPUTS_176(d), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define WGMMA_OUTPUTS_192(d) WGMMA_OUTPUTS_184(d), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define WGMMA_OUTPUTS_200(d) WGMMA_OUTPUTS_192(d), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define WGMMA_OUTPUTS_208(d) WGMMA_OUTPUTS_200(d), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define WGMMA_OUTPUTS_216(d) WGMMA_OUTPUTS_208(d), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define WGMMA_OUTPUTS_224(d) WGMMA_OUTPUTS_216(d), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define WGMMA_OUTPUTS_232(d) WGMMA_OUTPUTS_224(d), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define WGMMA_OUTPUTS_240(d) WGMMA_OUTPUTS_232(d), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define WGMMA_OUTPUTS_248(d) WGMMA_OUTPUTS_240(d), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define WGMMA_OUTPUTS_256(d) WGMMA_OUTPUTS_248(d), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

// The instruction of one N. From shared memory: the descriptors of A and B are operands i0 and i1,
// then the predicate's source, then which operands are transposed. From registers: A is i0 to i3.
// (The two ones before these say that A and B are not negated.)
#define WGMMA_BOTH_FROM_SMEM(N, type, i0, i1, i2, i3, i4) \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" #i2 ", 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" WGMMA_REGISTERS_##N "}, " \
                 "%" #i0 ", %" #i1 ", p, 1, 1, %" #i3 ", %" #i4 ";}" \
                 : WGMMA_OUTPUTS_##N(d) \
                 : "l"(A), "l"(B), "r"((int)accumulate), "n"(TransposeA), "n"(TransposeB))
#define WGMMA_A_FROM_REGISTERS(N, type, i0, i1, i2, i3, i4, i5, i6) \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" #i5 ", 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type " {" WGMMA_REGISTERS_##N "}, " \
                 "{%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", p, 1, 1, %" #i6 ";}" \
                 : WGMMA_OUTPUTS_##N(d) \
                 : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B), "r"((int)accumulate), "n"(TransposeB))

// The same for e4m3, of which neither operand can be transposed: two operands fewer.
#define WGMMA_E4M3_BOTH_FROM_SMEM(N, i0, i1, i2) \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" #i2 ", 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" WGMMA_REGISTERS_##N "}, " \
                 "%" #i0 ", %" #i1 ", p, 1, 1;}" \
                 : WGMMA_OUTPUTS_##N(d) \
                 : "l"(A), "l"(B), "r"((int)accumulate))
#define WGMMA_E4M3_A_FROM_REGISTERS(N, i0, i1, i2, i3, i4, i5) \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" #i5 ", 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #N "k32.f32.e4m3.e4m3 {" WGMMA_REGISTERS_##N "}, " \
                 "{%" #i0 ", %" #i1 ", %" #i2 ", %" #i3 "}, %" #i4 ", p, 1, 1;}" \
                 : WGMMA_OUTPUTS_##N(d) \
                 : "r"(A[0]), "r"(A[1]), "r"(A[2]), "r"(A[3]), "l"(B), "r"((int)accumulate))

template <int N, class T> struct wgmma_of; // N columns of D, elements of type T
template <int N> struct wgmma_of_e4m3;

#define WGMMA(N, T, type, i0, i1, i2, i3, i4, i5, i6) \
    template <> struct wgmma_of<N, T> { \
        template <int TransposeA, int TransposeB> \
        static PTX void run(float (&d)[N / 2], uint64_t A, uint64_t B, bool accumulate) { \
            WGMMA_BOTH_FROM_SMEM(N, type, i0, i1, i2, i3, i4); \
        } \
        template <int TransposeB> \
        static PTX void run(float (&d)[N / 2], const uint32_t (&A)[4], uint64_t B, bool accumulate) { \
            WGMMA_A_FROM_REGISTERS(N, type, i0, i1, i2, i3, i4, i5, i6); \
        } \
    };
#define WGMMA_E4M3(N, i0, i1, i2, i3, i4, i5, i6) \
    template <> struct wgmma_of_e4m3<N> { \
        static PTX void run(float (&d)[N / 2], uint64_t A, uint64_t B, bool accumulate) { \
            WGMMA_E4M3_BOTH_FROM_SMEM(N, i0, i1, i2); \
        } \
        static PTX void run(float (&d)[N / 2], const uint32_t (&A)[4], uint64_t B, bool accumulate) { \
            WGMMA_E4M3_A_FROM_REGISTERS(N, i0, i1, i2, i3, i4, i5); \
        } \
    };
#define WGMMA_N(N, ...) \
    WGMMA(N, __half, "f16", __VA_ARGS__) \
    WGMMA(N, __nv_bfloat16, "bf16", __VA_ARGS__) \
    WGMMA_E4M3(N, __VA_ARGS__)

WGMMA_N(8, 4, 5, 6, 7, 8, 9, 10)
WGMMA_N(16, 8, 9, 10, 11, 12, 13, 14)
WGMMA_N(24, 12, 13, 14, 15, 16, 17, 18)
WGMMA_N(32, 16, 17, 18, 19, 20, 21, 22)
WGMMA_N(40, 20, 21, 22, 23, 24, 25, 26)
WGMMA_N(48, 24, 25, 26, 27, 28, 29, 30)
WGMMA_N(56, 28, 29, 30, 31, 32, 33, 34)
WGMMA_N(64, 32, 33, 34, 35, 36, 37, 38)
WGMMA_N(72, 36, 37, 38, 39, 40, 41, 42)
WGMMA_N(80, 40, 41, 42, 43, 44, 45, 46)
WGMMA_N(88, 44, 45, 46, 47, 48, 49, 50)
WGMMA_N(96, 48, 49, 50, 51, 52, 53, 54)
WGMMA_N(104, 52, 53, 54, 55, 56, 57, 58)
WGMMA_N(112, 56, 57, 58, 59, 60, 61, 62)
WGMMA_N(120, 60, 61, 62, 63, 64, 65, 66)
WGMMA_N(128, 64, 65, 66, 67, 68, 69, 70)
WGMMA_N(136, 68, 69, 70, 71, 72, 73, 74)
WGMMA_N(144, 72, 73, 74, 75, 76, 77, 78)
WGMMA_N(152, 76, 77, 78, 79, 80, 81, 82)
WGMMA_N(160, 80, 81, 82, 83, 84, 85, 86)
WGMMA_N(168, 84, 85, 86, 87, 88, 89, 90)
WGMMA_N(176, 88, 89, 90, 91, 92, 93, 94)
WGMMA_N(184, 92, 93, 94, 95, 96, 97, 98)
WGMMA_N(192, 96, 97, 98, 99, 100, 101, 102)
WGMMA_N(200, 100, 101, 102, 103, 104, 105, 106)
WGMMA_N(208, 104, 105, 106, 107, 108, 109, 110)
WGMMA_N(216, 108, 109, 110, 111, 112, 113, 114)
WGMMA_N(224, 112, 113, 114, 115, 116, 117, 118)
WGMMA_N(232, 116, 117, 118, 119, 120, 121, 122)
WGMMA_N(240, 120, 121, 122, 123, 124, 125, 126)
WGMMA_N(248, 124, 125, 126, 127, 128, 129, 130)
WGMMA_N(256, 128, 129, 130, 131, 132, 133, 134)
// clang-format on

#endif
