/* 1,000 replies under random schemas, half of them calls (tests/server/test_schemas.c). */
#define GENERATIONS 500
#include "../server/test_schemas.c"

#include "../server/http_client.c"
#include "../server/program.c"
