/* options.h: a table-driven command line parser.
 *
 * A program describes its options as const tables; each table (a group) is bound to the struct that receives the
 * values by offset.  The help text is made from the same tables, so the two cannot differ.
 *
 *     --name VALUE   --name=VALUE   -x VALUE   -xVALUE   -ab (flags)   --  ends the options
 *
 * An argument after an option that takes a value is always that value, even when it begins with a dash.  Names are not
 * abbreviated.  Of a repeated option the last value counts, except for lists, which collect.  `--help`/`-h` and
 * `--version` belong to every program: parsing stops at the first of them.
 *
 * Owns: nothing; strings in the receiving structs point into argv or the environment.
 * Threads: tables are const; a parse belongs to one thread.
 * Errors: MS_ERR_USAGE, one line naming the option, what is permitted and what was found.
 */
#ifndef MS_BASE_OPTIONS_H
#define MS_BASE_OPTIONS_H

#include "base/error.h"
#include "base/text.h"

typedef enum ms_option_type {
    MS_OPTION_FLAG,   /* bool: becomes true                                                             */
    MS_OPTION_SET,    /* int: becomes `set`; no value on the command line                               */
    MS_OPTION_STRING, /* const char *                                                                   */
    MS_OPTION_LIST,   /* ms_option_list: collects up to `max` strings (0: MS_OPTION_LIST_MAX)           */
    MS_OPTION_U32,    /* uint32_t, decimal digits, min..max                                             */
    MS_OPTION_U64,    /* uint64_t, decimal digits, min..max                                             */
    MS_OPTION_I64,    /* int64_t, any; decimal digits with an optional minus                            */
    MS_OPTION_BYTES,  /* uint64_t, digits with an optional K, M, G or T (powers of 1024; "4G", "4GiB")  */
    MS_OPTION_REAL,   /* double, digits with an optional fraction, low..high                            */
    MS_OPTION_CHOICE  /* int: the index in `choices`                                                    */
} ms_option_type;

#define MS_OPTION_LIST_MAX 16u

typedef struct ms_option_list {
    const char *items[MS_OPTION_LIST_MAX];
    size_t count;
} ms_option_list;

typedef struct ms_option {
    const char *name; /* without dashes */
    char letter;      /* one-letter form; 0: none */
    ms_option_type type;
    size_t offset;     /* of the receiving field in the group's struct */
    const char *arg;   /* name of the value in the help text; NULL for flags and sets */
    const char *help;  /* one sentence; ranges and choices are added by the help printer; NULL: not in the help text */
    const char *env;   /* environment variable that gives the value when the option does not; NULL: none */
    uint64_t min, max; /* U32, U64, BYTES; max 0 means the type's largest value */
    double low, high;  /* REAL */
    bool low_open, high_open;   /* REAL: the bound itself is not permitted */
    int set;                    /* SET */
    const char *const *choices; /* CHOICE: NULL-terminated */
    bool filled;                /* STRING, LIST: an empty value is refused */
    const char *word;           /* U32: a word that stands for UINT32_MAX, beside the numbers; may be NULL */
} ms_option;

typedef struct ms_option_group {
    const char *title; /* heading in the help text; NULL: the whole group is not in it */
    const ms_option *options;
    size_t count;
    void *values; /* the struct that `offset` refers to; may be NULL when only help is printed */
} ms_option_group;

typedef struct ms_option_set {
    const char *program;  /* as typed: "moonshine-chat", "moonshine plan" */
    const char *synopsis; /* what follows the program in the usage line: "[MODEL] [options]" */
    const char *about;    /* paragraph below the usage line; may be NULL */
    const char *epilogue; /* text below the options; may be NULL */
    const ms_option_group *groups;
    size_t group_count;
    size_t max_args; /* positional arguments that are permitted */
} ms_option_set;

#define MS_OPTION_ARGS_MAX  16u
#define MS_OPTION_GIVEN_MAX 256u

typedef struct ms_option_result {
    bool help, version;
    const char *args[MS_OPTION_ARGS_MAX]; /* positional arguments in order */
    size_t arg_count;
    bool given[MS_OPTION_GIVEN_MAX]; /* on the command line, by running number over all groups */
} ms_option_result;

/* Reads argv[1..argc) into the groups' structs, whose fields hold the defaults before the call, then takes from the
 * environment what the command line did not give (an empty variable counts as unset).  With *result.help or .version
 * the rest of the command line was not looked at. */
ms_status ms_options_parse(const ms_option_set *set, int argc, char *const *argv, ms_option_result *result,
                           ms_error *err);

/* True when the option was on the command line.  An unknown name gives false. */
bool ms_options_given(const ms_option_set *set, const ms_option_result *result, const char *name);

/* MS_ERR_USAGE naming both when more than one of names[0..count) was on the command line. */
ms_status ms_options_exclusive(const ms_option_set *set, const ms_option_result *result, const char *const *names,
                               size_t count, ms_error *err);

/* Appends the help text: usage line, groups, epilogue; lines of at most 100 columns. */
void ms_options_help(const ms_option_set *set, ms_text *out);

/* Single values by the same rules; `name` goes in front of the message ("/max", "--context"). */
ms_status ms_option_parse_u64(uint64_t *out, const char *name, const char *text, uint64_t min, uint64_t max,
                              ms_error *err);
ms_status ms_option_parse_real(double *out, const char *name, const char *text, double low, double high, ms_error *err);
ms_status ms_option_parse_bytes(uint64_t *out, const char *name, const char *text, uint64_t min, uint64_t max,
                                ms_error *err);

#endif
