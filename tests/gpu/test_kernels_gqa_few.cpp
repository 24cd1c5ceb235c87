/* The same with blocks of half the queries. */
#define GQA_FEW_BLOCKS 0xffffffffu
#include "test_kernels_gqa.cpp"
