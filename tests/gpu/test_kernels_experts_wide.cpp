/* The expert tests with items for wide tiles. */
#define TEST_WIDE 1
#include "test_kernels_experts.cpp"
