/* The expert tests with the other order of quantised inputs: the one that CUDA devices use. */
#define MX_NATURAL 1
#include "test_kernels_experts.cpp"
