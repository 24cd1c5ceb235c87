/* token_ids.h: token ids from the command line: a list, or a file of them. */
#ifndef MS_APPS_TOKEN_IDS_H
#define MS_APPS_TOKEN_IDS_H

#include "text/tokenizer.h"

/* Exactly one of --ids LIST and --ids-file FILE ('-': standard input) is not NULL; at least one id.  Appends to out. */
ms_status ms_token_ids_read(const char *list, const char *file, ms_ids *out, ms_error *err);

#endif
