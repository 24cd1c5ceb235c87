/* mimo_checkpoint.h: a small checkpoint of the MiMo layout: random weights beside the tokenizer of tests/text/hf. */
#ifndef TESTS_SERVER_MIMO_CHECKPOINT_H
#define TESTS_SERVER_MIMO_CHECKPOINT_H

#include <stdint.h>

enum { MIMO_TEST_VOCAB = 448, MIMO_TEST_PATH = 512 };

/* Makes a new folder under /tmp; fails the test on any error. */
void mimo_checkpoint_make(char dir[MIMO_TEST_PATH], uint64_t seed);
void mimo_checkpoint_remove(const char *dir);

#endif
