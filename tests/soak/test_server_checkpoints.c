/* 200 kills of the program and 15 rounds of damage to its kept states (tests/server/test_checkpoints.c). */
#define KILLS   200
#define DAMAGES 15
#include "../server/test_checkpoints.c"

#include "../server/http_client.c"
#include "../server/program.c"
