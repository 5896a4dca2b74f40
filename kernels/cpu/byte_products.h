// For sources that multiply bytes: adds AVX-512 VNNI to the instruction sets that this source is compiled
// for. Include it first.
#ifndef HWY_WANT_AVX3_DL
#define HWY_WANT_AVX3_DL
#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (WI_DISABLED_BUT_VNNI)
#endif
