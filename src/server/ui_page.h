/* ui_page.h: the built-in chat page, one self-contained HTML file (src/server/ui/page.html), embedded when the library
 * is built.
 *
 * Its own Content-Security-Policy forbids every request but to the server it came from.  Threads: constant data.
 */
#ifndef MS_SERVER_UI_PAGE_H
#define MS_SERVER_UI_PAGE_H

extern const char ms_ui_page[], ms_ui_page_end[]; /* bytes from the first up to the second */
#define MS_UI_PAGE_CONTENT "text/html; charset=utf-8"

#endif
