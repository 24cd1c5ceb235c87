/* `moonshine store`, `bundle`, `bench store` and the tools around them: results, refusals, signals, variables. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/text.h"

static char dir[64];

/* A shell line with $M (the program), $N (a model) and $D (a folder); both outputs in *out. */
static int shell(const char *line, ms_text *out) {
    char piece[4096], whole[4096];
    *out = (ms_text){0};
    (void)snprintf(whole, sizeof whole, "{ %s\n} 2>&1", line);
    FILE *f = popen(whole, "r");
    assert_non_null(f);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;) ms_text_append(out, piece, n);
    ms_text_append(out, "", 0);
    int how = pclose(f);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
}

static void expect(int code, const char *word, const char *line) {
    ms_text out;
    int got = shell(line, &out);
    if (got != code || !strstr(out.data ? out.data : "", word))
        fail_msg("%s: exit %d, \"%s\" not in: %s", line, got, word, out.data);
    ms_text_free(&out);
}

static int begin(void **state) {
    (void)state;
    const char *bin = getenv("MOONSHINE_BIN");
    char program[1024];
    strcpy(dir, "/tmp/ms-cli-store-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    (void)snprintf(program, sizeof program, "%s/moonshine", bin && *bin ? bin : "build");
    return setenv("M", program, 1) || setenv("MOONSHINE", program, 1) || setenv("D", dir, 1) ||
           setenv("N", "models/k3-nano", 1) || unsetenv("MOONSHINE_MZG2_STORE") || unsetenv("MOONSHINE_EXPERT_STORE");
}

static int end(void **state) {
    (void)state;
    ms_text out;
    int code = shell("rm -rf \"$D\"", &out);
    ms_text_free(&out);
    return code;
}

static void stores(void **state) {
    (void)state;
    expect(0, "build", "$M store --help");
    expect(2, "unknown command", "$M store other");
    expect(2, "expected a checkpoint", "$M store build");
    expect(0, "published, 8 layers, 256 experts", "$M store build $N $D/s --jobs 2 --signs");
    expect(2, "existing", "$M store build $N $D/s");
    expect(0, "verified against the source", "$M store verify $D/s $N");
    expect(0, "file digests verified", "$M store verify $D/s --fast");
    expect(0, "experts decoded, all checks hold", "tools/mzg2_decode.py $D/s/layer-003.mzg2 --expert 31");
    expect(0, "restored", "$M store restore $D/s 3 $D/layer3");
    expect(0, "same", "$M store layer $N 3 $D/one && cmp $D/one $D/s/layer-003.mzg2 && echo same");
    expect(2, "no such routed layer", "$M store layer $N 77 $D/two");
    expect(0, "ideal saving", "$M store probe $N --read-rate 1 --jobs 1");
    expect(0, "do not get smaller", "$M store probe $N --read-rate 0.001 --jobs 1");
    expect(0, "the store wins",
           "$M synth $D/g --gaussian --latent 512 --inner 512 --layers 4 --experts 8 >/dev/null && "
           "$M store probe $D/g --read-rate 0.001 --jobs 1");
    expect(0, "raw store wins", "$M store probe $D/g --read-rate 1000 --jobs 1");
    expect(1, "manifest.json", "mkdir $D/empty && $M store verify $D/empty");
}

static void selection(void **state) {
    (void)state;
    expect(0, "\"source\":\"safetensors\",\"expert_store\":\"mzg2\"", "$M logits $N --ids 1 --json --store $D/s");
    expect(0, "\"expert_store\":\"raw\"", "$M logits $N --ids 1 --json --store raw");
    expect(0, "\"expert_store\":\"mzg2\"", "MOONSHINE_MZG2_STORE=$D/s $M logits $N --ids 1 --json");
    expect(0, "\"expert_store\":\"raw\"", "MOONSHINE_MZG2_STORE=$D/s $M logits $N --ids 1 --json --store raw");
    expect(0, "\"expert_store\":\"raw\"", "MOONSHINE_MZG2_STORE=off $M logits $N --ids 1 --json");
    expect(0, "\"expert_store\":\"mzg2\"",
           "MOONSHINE_MZG2_STORE=$D/s $M logits $N --ids 1 --json --store auto --read-limit 0.02 2>/dev/null");
    expect(2, "absolute path", "MOONSHINE_MZG2_STORE=some/where $M logits $N --ids 1");
    expect(2, "MOONSHINE_EXPERT_STORE", "MOONSHINE_EXPERT_STORE=/x $M logits $N --ids 1");
    expect(1, "expected a finished store", "$M logits $N --ids 1 --store $D/empty");
    expect(0, "compressed store", "$M plan $N --store $D/s");
    expect(0, "drive of 0.05 GB/s", "$M bench store $N --store $D/s --rate 0.05 --tokens 2 --experts 0 --threads 1");
    expect(0, "encode", "$M bench store --latent 256 --inner 128 --threads 2");
}

static void bundles(void **state) {
    (void)state;
    expect(0, "verify", "$M bundle --help");
    expect(0, "(linked)", "tools/build_mzg2_bundle.py build --model $N --out $D/b --reuse-mzg2 $D/s");
    expect(0, "verified", "tools/build_mzg2_bundle.py verify $D/b --jobs 2");
    expect(0, "\"source\":\"bundle\",\"expert_store\":\"mzg2\"", "$M logits $D/b --ids 1 --json");
    expect(2, "which has its own experts", "$M logits $D/b --ids 1 --store $D/s");
    expect(2, "found a bundle", "$M bundle build $D/b $D/c");
    expect(0, "layout is complete", "$M verify $D/b");
    expect(1, "LICENSE", "echo x > $D/b/LICENSE; $M bundle verify $D/b");
}

/* A file of the model that is called like the state of a build, layers that are links, and two builds of one bundle. */
static void odd_bundles(void **state) {
    (void)state;
    expect(0, "(linked)",
           "cp -r $N $D/o && echo '{}' > $D/o/state.json && mkdir $D/ls && cp $D/s/manifest.json $D/ls && "
           "cp -r $D/s/cold $D/ls && ln -s ../s/layer-003.mzg2 $D/ls && for l in 1 2 4 5 6 7 8; do "
           "ln $D/s/layer-00$l.mzg2 $D/ls; done && $M bundle build $D/o $D/ob --reuse-mzg2 $D/ls ");
    expect(0, "verified", "[ -f $D/ob/state.json ] && [ ! -L $D/ob/mzg2/layer-003.mzg2 ] && $M bundle verify $D/ob");
    expect(2, "found other files",
           "mkdir $D/of.partial && echo mine > $D/of.partial/letter && $M bundle build $N $D/of");
    expect(0, "verified",
           "rm $D/of.partial/letter && cp -r $N $D/om && echo mine > $D/om/mzg2 && "
           "$M bundle build $D/om $D/of --reuse-mzg2 $D/s && $M bundle verify $D/of");
    expect(2, "another build is at work", "mkdir $D/oc.partial && flock $D/oc.partial $M bundle build $N $D/oc");
}

static void tools(void **state) {
    (void)state;
    expect(0, "verified against the source", "tools/transcode_mzg2_full.py --model $N --out $D/t --jobs 2");
    expect(0, "verified against the source", "tools/transcode_mzg2_full.py --model $N --out $D/t --verify-only");
    expect(2, "--resume", "mkdir $D/u.partial && tools/transcode_mzg2_full.py --model $N --out $D/u");
    expect(0, "published", "tools/transcode_mzg2_full.py --model $N --out $D/u --resume");
    expect(0, "compared", "tools/transcode_mzg2_layer $N 2 $D/layer2");
    expect(2, "usage", "tools/transcode_mzg2_layer $N");
}

/* A signal ends a build with its code; the same command goes on. */
static void interrupted(void **state) {
    (void)state;
    expect(0, "done",
           "$M synth $D/m --gaussian --layers 5 --experts 64 --latent 512 --inner 512 >/dev/null && "
           "{ $M store build $D/m $D/v --jobs 1 & p=$!; i=0; until [ -s $D/v.partial/layer-001.mzg2.tmp ] || [ $i -gt "
           "500 ]; do "
           "sleep 0.01; i=$((i+1)); done; kill -TERM $p; wait $p; code=$?; }; "
           "[ $code = 143 ] && [ ! -e $D/v ] && [ -d $D/v.partial ] && $M store build $D/m $D/v --jobs 2 && "
           "$M store verify $D/v $D/m && echo done");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(stores),  cmocka_unit_test(selection),
                                       cmocka_unit_test(bundles), cmocka_unit_test(odd_bundles),
                                       cmocka_unit_test(tools),   cmocka_unit_test(interrupted)};
    return cmocka_run_group_tests(tests, begin, end);
}
