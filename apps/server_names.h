/* server_names.h: options of moonshine-server under the names that operators of some model families know.  Each is
 * another name of a common option; which of them a family has, its lane says (lane.h, option_names), so they are looked
 * at when the model's config.json is read.
 */
#ifndef MS_APPS_SERVER_NAMES_H
#define MS_APPS_SERVER_NAMES_H

#include "lane/lane.h"
#include "server_options.h"

extern const ms_option server_name_table[];
extern const size_t server_name_count;
/* What holds before the command line is read. */
server_names server_names_default(void);

/* After the parse: notes which were given.  MS_ERR_USAGE for one beside the common option that it stands for. */
ms_status server_names_parsed(server_options *o, const ms_option_set *set, const ms_option_result *r, ms_error *err);
/* Puts them into the common options.  MS_ERR_USAGE for one that the lane does not have, and for bounds of a folder of
 * states without the folder, under either name. */
ms_status server_names_apply(server_options *o, const ms_lane *lane, ms_error *err);
/* The option that gave the folder of states. */
const char *server_names_root(const server_options *o);

#endif
