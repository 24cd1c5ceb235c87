/* bench.h: the subcommands of `moonshine bench`. They return exit codes like every command (command.h). */
#ifndef MS_APPS_BENCH_H
#define MS_APPS_BENCH_H

int ms_bench_quality(int argc, char **argv);

#endif
