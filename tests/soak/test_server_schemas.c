/* 1,000 replies under random schemas, and 1,000 calls (tests/server/test_schemas.c). */
#define GENERATIONS 1000
#include "../server/test_schemas.c"

#include "../server/http_client.c"
#include "../server/program.c"
