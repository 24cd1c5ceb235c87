/* The expert tests with the arrangement of AMD's matrix unit. */
#define GPU_S8_WMMA 1
#include "test_kernels_experts.cpp"
