/* lane.h: what the engine asks of a model family.
 *
 * A lane is a table of functions over its own config struct: it says which tensors it needs, what becomes of them, what
 * state and workspace a pass needs, and runs one pass of any length against backend.h.  It does no I/O: embedding rows
 * and experts come through the run's callbacks.
 *
 * Owns: nothing; the engine owns config and weights, a session owns state and workspace.
 * Threads: descriptors are const; a pass runs on the inference thread.
 */
#ifndef MS_LANE_LANE_H
#define MS_LANE_LANE_H

#include "backend/backend.h"
#include "nn/expert_service.h"
#include "nn/state.h"
#include "store/checkpoint.h"
#include "text/chat.h"
#include "text/grammar_reply.h"

/* Rows of a weight within a tensor that is stored in chunks of equal size: `take` rows from row `first` of each chunk,
 * chunk after chunk. */
typedef struct ms_row_chunks {
    uint32_t size; /* rows of a chunk in the tensor; 0: the tensor's rows as they are */
    uint32_t first, take;
} ms_row_chunks;

/* A resident weight: where it comes from and where it goes. */
typedef struct ms_static_item {
    char name[160];
    char times[160];     /* second tensor, multiplied elementwise into an F32 vector; "" : none */
    /* F32 tensor of block scales, for an F8_E4M3 tensor: one row a 128 rows of a chunk (the last block may be shorter, the
     * next chunk starts a new one), one column a 128 columns; "": none. */
    char scales[160];
    ms_row_chunks chunks;
    ms_format format;
    uint32_t rows, cols;
    size_t weight_offset; /* of the ms_weight in the lane's weights struct */
} ms_static_item;

typedef struct ms_static_list {
    ms_static_item *items;
    size_t count, cap;
} ms_static_list;
ms_status ms_static_list_add(ms_static_list *l, const ms_static_item *item, ms_error *err);
void ms_static_list_free(ms_static_list *l);

/* A workspace buffer of one pass. */
typedef struct ms_workspace_item {
    const char *name;
    uint64_t bytes;
    bool host; /* plain memory, for what the host sorts and counts; else device */
} ms_workspace_item;

typedef struct ms_lane_info {
    uint32_t vocab, hidden, layers, experts, top_k, bos, eos;
    uint64_t max_context;
    ms_expert_shape expert_shape;
    uint32_t moe_layer_count;
    char embed_name[160]; /* BF16 [vocab][hidden] */
} ms_lane_info;

typedef struct ms_run {
    ms_backend *backend;
    const void *config, *weights;
    ms_state *state;          /* reads current, writes next and rows at position.. ; the caller commits */
    ms_expert_service *experts;
    void *const *workspace;   /* buffers in the order of lane->workspace */
    uint32_t rows, max_rows;  /* max_rows: what the workspace was planned for */
    const float *embedding;   /* device [rows][hidden] */
    /* Wanted logits: 0, 1 (last row) or rows.  Given out in batches of at most logit_rows in row order. */
    uint32_t want_logits;
    float *logits;            /* device [logit_rows][vocab] */
    uint32_t logit_rows;
    ms_status (*emit)(void *arg, uint32_t first_row, uint32_t rows, const float *device_logits, ms_error *err);
    void *emit_arg;
    /* Called at every layer boundary; non-OK stops the pass. */
    ms_status (*layer_done)(void *arg, uint32_t layer, ms_error *err);
    void *layer_done_arg;
    void (*routes)(void *arg, uint32_t layer, uint32_t rows, uint32_t top_k, const uint32_t *ids);
    void *routes_arg;
} ms_run;

typedef struct ms_reply_parser_ops {
    ms_status (*create)(void **out, const ms_tokenizer *t, ms_channel channel, ms_error *err);
    ms_status (*push)(void *p, uint32_t id, ms_reply_delta *delta, bool *done, ms_error *err);
    ms_status (*finish)(void *p, ms_reply_delta *delta, ms_reply *out, ms_error *err);
    void (*destroy)(void *p);
    /* Declared tools (a JSON array, valid during the call), before the first push; NULL: the format needs none. */
    ms_status (*tools)(void *p, const ms_json *tools, ms_error *err);
    /* Between pushes; views last until the next one.  NULL: calls can be told at the end only. */
    void (*calls)(const void *p, ms_call_view *out);
} ms_reply_parser_ops;

typedef struct ms_lane {
    const char *name;
    size_t config_bytes, weights_bytes; /* structs; zeroed by the engine */
    bool greedy_only;                   /* sampling needs an explicit permission */
    const char *rank_file;              /* tokenizer file in the checkpoint directory */
    ms_tokenizer_kind tokenizer_kind;   /* its format */

    bool (*matches)(const ms_json *config_root);
    ms_status (*config_parse)(void *config, const ms_json *root, const char *file, ms_error *err);
    /* Numbers that the checkpoint's index carries instead of config.json, before layout_check; NULL: none. */
    ms_status (*config_bind)(void *config, const ms_checkpoint *c, ms_error *err);
    void (*info)(const void *config, ms_lane_info *out);
    ms_tensor_needed_fn *tensor_needed;
    /* Checks the whole directory; fills experts (caller frees). */
    ms_status (*layout_check)(const ms_checkpoint *c, const void *config, ms_expert_table *experts, ms_error *err);

    /* Looks at weights for what headers cannot tell, and appends lines for people to report; NULL: nothing to look at. */
    ms_status (*weights_check)(const ms_checkpoint *c, const void *config, ms_text *report, ms_error *err);

    ms_status (*statics)(const void *config, ms_static_format format, ms_static_list *out, ms_error *err);
    /* Appends to parts; returns the count (parts may be NULL to count). */
    uint32_t (*state_parts)(const void *config, ms_precision precision, ms_state_part *parts);
    /* Returns the number of workspace items; items may be NULL to count. */
    uint32_t (*workspace)(const void *config, uint32_t rows, ms_workspace_item *items);
    void (*scratch_need)(const void *config, uint32_t rows, uint64_t context, ms_scratch_need *out);

    /* One pass over run->rows tokens at state->position. */
    ms_status (*forward)(const ms_run *run, ms_error *err);

    ms_status (*render)(const ms_json *request, ms_segments *out, ms_error *err);
    const ms_reply_parser_ops *parser;
    /* A finished grammar of the replies that keep to the rules, from the first generated token to the end-of-message id,
     * in the control ids of the tokenizer.  MS_ERR_USAGE: a schema is refused (report->fault), or no reply at all fits. */
    ms_status (*reply_grammar)(ms_grammar **out, const ms_tokenizer *t, const ms_reply_rules *rules,
                               ms_reply_report *report, ms_error *err);

    /* What a server offers of the chat format. */
    const char *model_id;         /* default name of the model */
    const char *const *efforts;   /* NULL-terminated; "none" among them: thinking can be off */
    const char *default_effort;
    bool dynamic_tools;           /* system messages may declare tools */
    const char *const *option_names; /* NULL-terminated: its own names of common options, as `slots`; NULL: none */
    bool keeps_reasoning;         /* the reasoning of old turns is part of the prompt */
} ms_lane;

extern const ms_lane ms_lane_k3;
extern const ms_lane ms_lane_mimo26;

/* The lane for a parsed config.json; NULL: none matches. */
const ms_lane *ms_lane_find(const ms_json *config_root);
/* What config.json may name as model_type, for messages. */
const char *ms_lane_model_types(void);

#endif
