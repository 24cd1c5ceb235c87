/* ui_handler.c: GET / with --ui. */
#include "server/server_internal.h"
#include "server/ui_page.h"

void ms_handle_ui(void *arg, ms_exchange *x) {
    const ms_server *s = arg;
    ms_api_error e;
    if (!s->o.ui) {
        (void)ms_api_fail(&e, 404, "endpoint_disabled", "", "this needs the server option --ui");
        ms_exchange_error(x, &e);
        return;
    }
    ms_text page = {0};
    ms_text_append(&page, ms_ui_page, (size_t)(ms_ui_page_end - ms_ui_page));
    ms_exchange_reply(x, 200, MS_UI_PAGE_CONTENT, &page);
}
