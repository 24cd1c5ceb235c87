/* bench.h: the subcommands of `moonshine bench`. They return exit codes like every command (command.h). */
#ifndef MS_APPS_BENCH_H
#define MS_APPS_BENCH_H

int ms_bench_quality(int argc, char **argv);
int ms_bench_kernels(int argc, char **argv);
int ms_bench_mask(int argc, char **argv);
int ms_bench_gpu(int argc, char **argv);
int ms_bench_shape(int argc, char **argv);
int ms_bench_load(int argc, char **argv);
int ms_bench_disk(int argc, char **argv);
int ms_bench_replay(int argc, char **argv);
int ms_bench_store(int argc, char **argv);
int ms_bench_decode(int argc, char **argv);
int ms_bench_prefill(int argc, char **argv);

#endif
