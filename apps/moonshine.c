/* moonshine: plan, check and inspect checkpoints. */
#include <stdio.h>
#include <string.h>

#include "command.h"

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} command;

static const command commands[] = {
    {"plan", ms_command_plan, "print the memory ledger of a model from its headers"},
    {"verify", ms_command_verify, "check a checkpoint's layout: config, every header, every expert"},
    {"logits", ms_command_logits, "evaluate token ids and give logits, greedy tokens, experts, digests"},
    {"text", ms_command_text, "encode, decode, render or parse JSON lines"},
    {"trace", ms_command_trace, "record which experts each token uses and which were cached"},
    {"synth", ms_command_synth, "write a random checkpoint of a given shape"},
    {"store", ms_command_store, "compress experts: build, verify, probe, restore"},
    {"bundle", ms_command_bundle, "one folder with all that a model needs: build, verify"},
    {"bench", ms_command_bench, "measure speed and quality"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void usage(FILE *out) {
    fputs("usage: moonshine COMMAND [arguments]\n\ncommands:\n", out);
    for (size_t i = 0; i < COMMANDS; i++) fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].about);
    fputs("\nmoonshine COMMAND --help describes a command. moonshine-chat talks to a model.\n", out);
}

int main(int argc, char **argv) {
    ms_command_begin();
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        usage(stdout);
        return ms_command_finish("moonshine");
    }
    if (!strcmp(argv[1], "--version")) {
        printf("moonshine %s\n", MS_VERSION);
        return ms_command_finish("moonshine");
    }
    for (size_t i = 0; i < COMMANDS; i++)
        if (!strcmp(argv[1], commands[i].name)) return commands[i].run(argc - 1, argv + 1);
    fprintf(stderr, "moonshine: unknown command '%s'\n", argv[1]);
    usage(stderr);
    return 2;
}
