#include "server/api.h"
static bool parse(ms_api_request *out, const char *body, size_t len, const ms_api_limits *limits, bool count_only, ms_api_error *err) { (void)out;(void)body;(void)len;(void)limits;(void)count_only; return ms_api_fail(err, 404, "not_found", "", "none"); }
const ms_api_codec ms_api_responses = {.kind = MS_API_RESPONSES, .name = "responses", .parse = parse};
