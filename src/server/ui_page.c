/* ui_page.c: embeds ui/page.html.  The path is from the root of the tree, where make runs the compiler; the Makefile
 * knows that this object depends on the page. */
#include "server/ui_page.h"

__asm__(".pushsection .rodata\n"
        ".global ms_ui_page\n"
        ".type ms_ui_page, @object\n"
        "ms_ui_page:\n"
        ".incbin \"src/server/ui/page.html\"\n"
        ".size ms_ui_page, . - ms_ui_page\n"
        ".global ms_ui_page_end\n"
        ".type ms_ui_page_end, @object\n"
        "ms_ui_page_end:\n"
        ".byte 0\n"
        ".size ms_ui_page_end, 1\n"
        ".popsection\n");
