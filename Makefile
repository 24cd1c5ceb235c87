# Moonshine.  `make help` lists the targets.
#   make                      library and programs, in build/
#   make V=1                  the same, showing every command
#   make CC=clang BUILD=b2    other compiler, other output folder
#   make SAN=address,undefined test    (or SAN=thread)
#   make MODULES="base text" TESTS=tests/text tests   only part of the tree
# A change of compiler or flags inside one BUILD folder rebuilds what it concerns.

ifeq ($(origin CC),default)
CC      := gcc
endif
CLANG   ?= clang
BUILD   ?= build
SAN     ?=
OPT     ?= -O2
V       ?=
PREFIX  ?= /usr/local
FUZZ_SECONDS ?= 300
# Folders of src/ that go into the library.
MODULES ?= $(patsubst src/%/,%,$(wildcard src/*/))
# Folders (or single files) whose test_*.c are test programs.
TESTS   ?= $(filter-out $(SPECIAL_TESTS),$(patsubst %/,%,$(wildcard tests/*/)))
SPECIAL_TESTS := tests/fuzz tests/golden tests/golden-bad tests/soak

WARN     = -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
# -ffp-contract=off: fused operations happen where the source says fma and nowhere else, or bits would
# depend on the compiler (docs/numerics.md).
COMPILE := $(OPT) -g $(WARN) $(CFLAGS) -std=c11 -ffp-contract=off -fno-math-errno -pthread -D_GNU_SOURCE \
           $(CPPFLAGS) -Iinclude -Isrc
LINK    := -pthread $(LDFLAGS) -Wl,--as-needed
LIBS    := -lmicrohttpd -luring -llzma -lcrypto -lm $(LDLIBS)
ifneq ($(SAN),)
COMPILE += -fsanitize=$(SAN) -fno-omit-frame-pointer
ifneq ($(findstring undefined,$(SAN)),)
COMPILE += -fno-sanitize-recover=undefined
endif
LINK    += -fsanitize=$(SAN)
endif

# Kernel files carry their instruction set in their name and are built for its processors only; the rest is plain C.
MACHINE      := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
FOREIGN      := $(if $(filter x86_64 amd64,$(MACHINE)),,%_avx2.c %_avx512.c) \
                $(if $(filter aarch64 arm64,$(MACHINE)),,%_neon.c)
AVX2_FLAGS   := -mavx2 -mfma -mf16c -O3
AVX512_FLAGS := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -O3
NEON_FLAGS   := -march=armv8.2-a+dotprod -O3
SCALAR_FLAGS := -O3
KERNEL :=
%_avx2.o: KERNEL := $(AVX2_FLAGS)
%_avx512.o: KERNEL := $(AVX512_FLAGS)
%_neon.o: KERNEL := $(NEON_FLAGS)
%_scalar.o: KERNEL := $(SCALAR_FLAGS)

SRC      := $(filter-out $(FOREIGN),$(sort $(foreach m,$(MODULES),$(shell find src/$(m) -name '*.c'))))
OBJ      := $(SRC:%.c=$(BUILD)/%.o)
LIB      := $(BUILD)/libmoonshine.a
APPS     := $(patsubst apps/%.c,$(BUILD)/%,$(wildcard apps/moonshine*.c))
# The other files of apps/ are parts; a program takes those that it calls.
PART_OBJ := $(patsubst apps/%.c,$(BUILD)/apps/%.o,$(filter-out apps/moonshine%.c $(FOREIGN),$(wildcard apps/*.c)))
PARTS    := $(BUILD)/apps/parts.a
programs  = $(sort $(foreach t,$(patsubst %/,%,$(1)),$(if $(filter %.c,$(t)),$(t),$(wildcard $(t)/test_*.c))))
TEST_BIN := $(patsubst %.c,$(BUILD)/%,$(call programs,$(TESTS)))
UNIT_BIN := $(patsubst %.c,$(BUILD)/%,$(call programs,tests/unit))
SOAK_BIN := $(patsubst %.c,$(BUILD)/%,$(call programs,tests/soak))
FUZZ     := $(patsubst tests/fuzz/fuzz_%.c,fuzz-%,$(wildcard tests/fuzz/fuzz_*.c))
GOLD_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/golden/*.c))
# Tests of the programs need the programs, the golden runner among them.
TEST_APP := $(if $(filter tests/cli% tests/server%,$(TESTS)),$(APPS) $(BUILD)/golden)
# Other .c files of a test folder are shared parts, linked into each program of that folder.
shared    = $(patsubst %.c,$(BUILD)/%.o,$(filter-out tests/$(1)/test_% tests/$(1)/fuzz_%,$(wildcard tests/$(1)/*.c)))
C_FOLDERS := $(wildcard include src apps tests bench)

ifeq ($(V),)
Q := @
say = @printf '  %-5s %s\n' $(1) $(2)
endif
RUN_TESTS = BUILD='$(BUILD)' tests/run.sh

.PHONY: all lib tests check layers test list-tests test-long test-asan test-tsan test-soak fuzz golden \
        test-model-layout format-check format install clean help FORCE
.DEFAULT_GOAL := all

# A comment behind ## is the target's line in `make help`.
all: $(LIB) $(APPS) ## library and programs (the default)
lib: $(LIB) ## only the library
tests: $(TEST_BIN) $(TEST_APP) ## every test program, without running them
golden: $(BUILD)/golden ## the golden runner, from tests/golden/*.c

layers: ## the dependency order of the source folders (seconds)
	@tools/check_layers.sh

check: layers $(UNIT_BIN) ## after every edit: dependency order and unit tests (seconds)
	@$(RUN_TESTS) $(UNIT_BIN)

test: layers $(TEST_BIN) $(TEST_APP) ## everything that needs no GPU and no large weights (minutes)
	@$(RUN_TESTS) $(TEST_BIN)

list-tests: ## paths of the test programs, one a line
	@printf '%s\n' $(TEST_BIN)

# Targets one after the other, all of them even when one fails; they build in the same folders and measure time limits.
one_by_one = +@failed=; for t in $(1); do $(MAKE) --no-print-directory $$t || failed="$$failed $$t"; done; \
    if [ -n "$$failed" ]; then echo "$@: FAIL:$$failed"; exit 1; fi; echo '$@: PASS'

test-long: ## sanitizer runs, all fuzz targets, soak tests (hours)
	$(call one_by_one,test-asan test-tsan fuzz $(if $(SOAK_BIN),test-soak))

test-asan: ## make test under AddressSanitizer and UBSan, in BUILD-asan
	+@TEST_SECONDS=$${TEST_SECONDS:-1800} $(MAKE) --no-print-directory BUILD='$(BUILD)-asan' SAN=address,undefined test

# Some kernels randomise addresses further than older ThreadSanitizer runtimes can follow, so that is off where allowed.
test-tsan: ## make test under ThreadSanitizer, in BUILD-tsan
	+@fixed=; if setarch -R true 2>/dev/null; then fixed='setarch -R'; fi; \
	TEST_SECONDS=$${TEST_SECONDS:-1800} $$fixed $(MAKE) --no-print-directory BUILD='$(BUILD)-tsan' SAN=thread test

test-soak: $(SOAK_BIN) $(APPS) ## long runs of tests/soak
	@TEST_SECONDS=$${TEST_SECONDS:-3600} $(RUN_TESTS) $(SOAK_BIN)

fuzz: ## every fuzz target, one after the other
	$(call one_by_one,$(FUZZ))

# New inputs stay in BUILD-fuzz/corpus/NAME; those of tests/fuzz/corpus/NAME are only read.
fuzz-%: tests/fuzz/fuzz_%.c ## one fuzz target (clang) for FUZZ_SECONDS=300, from tests/fuzz/fuzz_NAME.c
	@command -v '$(CLANG)' >/dev/null || { echo 'fuzz-$*: clang is missing: install it or set CLANG='; exit 2; }
	+@$(MAKE) --no-print-directory CC='$(CLANG)' SAN=fuzzer-no-link,address,undefined BUILD='$(BUILD)-fuzz' \
	    '$(BUILD)-fuzz/tests/fuzz/fuzz_$*'
	@mkdir -p '$(BUILD)-fuzz/corpus/$*'
	'$(BUILD)-fuzz/tests/fuzz/fuzz_$*' -max_total_time=$(FUZZ_SECONDS) -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
	    -artifact_prefix='$(BUILD)-fuzz/found-$*-' '$(BUILD)-fuzz/corpus/$*' $(wildcard tests/fuzz/corpus/$*)
	@echo 'fuzz-$*: PASS'

test-model-layout: ## needs MOONSHINE_MODEL=DIR: checks names, shapes and order of a real checkpoint, prints its plan
	@if [ -z "$$MOONSHINE_MODEL" ]; then \
	    echo 'test-model-layout: set MOONSHINE_MODEL to a checkpoint folder (the one with config.json)'; exit 2; fi
	+@$(MAKE) --no-print-directory all
	'$(BUILD)/moonshine' verify "$$MOONSHINE_MODEL"
	'$(BUILD)/moonshine' plan "$$MOONSHINE_MODEL" || [ $$? -eq 3 ] # 3: a layout is right also where it does not fit
	@echo 'test-model-layout: PASS'

format-check: ## optional: the C files are as clang-format (.clang-format) writes them
	@command -v clang-format >/dev/null || { echo 'format-check: clang-format is missing: install it'; exit 2; }
	@find $(C_FOLDERS) -name '*.[ch]' ! -name '*_tables.c' -print0 | xargs -0 clang-format --dry-run -Werror
	@echo 'format-check: PASS'

format: ## rewrites the C files with clang-format
	@find $(C_FOLDERS) -name '*.[ch]' ! -name '*_tables.c' -print0 | xargs -0 clang-format -i

install: all ## programs, library and header under PREFIX=/usr/local (DESTDIR is honoured)
	install -d '$(DESTDIR)$(PREFIX)/bin' '$(DESTDIR)$(PREFIX)/lib' '$(DESTDIR)$(PREFIX)/include/moonshine'
	install -m 755 $(APPS) '$(DESTDIR)$(PREFIX)/bin'
	install -m 644 $(LIB) '$(DESTDIR)$(PREFIX)/lib'
	install -m 644 include/moonshine/moonshine.h '$(DESTDIR)$(PREFIX)/include/moonshine'

clean: ## removes BUILD and the folders of the sanitizer, fuzz and cross builds
	rm -rf '$(BUILD)' '$(BUILD)-asan' '$(BUILD)-tsan' '$(BUILD)-fuzz' '$(BUILD)-neon'

help: ## this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { sub(/%/, "NAME", $$1); printf "  %-18s %s\n", $$1, $$2 }' Makefile mk/*.mk
	@echo '  Variables: BUILD=build CC=gcc OPT=-O2 SAN= V= MODULES= TESTS= PREFIX= FUZZ_SECONDS='

# ---------------------------------------------------------------------------------------------------- rules

# Files that change only when what they list changes: everything built with other flags, or an archive of other
# files, is then out of date.
quote = '$(subst ','\'',$(1))'
define stamp
@mkdir -p $(@D)
@printf '%s\n' $(call quote,$(1)) | cmp -s - $@ || printf '%s\n' $(call quote,$(1)) > $@
endef
COMPILE_STAMP := $(CC) $(COMPILE) | $(AVX2_FLAGS) | $(AVX512_FLAGS) | $(NEON_FLAGS) | $(SCALAR_FLAGS)
$(BUILD)/compile.flags: FORCE
	$(call stamp,$(COMPILE_STAMP))
LINK_STAMP := $(CC) $(LINK) $(LIBS)
$(BUILD)/link.flags: FORCE
	$(call stamp,$(LINK_STAMP))
# What /health shows as the build; empty outside of a repository.
BUILD_ID := $(if $(wildcard .git),$(shell git rev-parse --short=12 HEAD 2>/dev/null))
$(BUILD)/build.id: FORCE
	$(call stamp,$(BUILD_ID))
$(BUILD)/apps/moonshine-server.o: COMPILE += -DMS_BUILD='"$(BUILD_ID)"'
$(BUILD)/apps/moonshine-server.o: $(BUILD)/build.id
$(BUILD)/library.list: FORCE
	$(call stamp,$(OBJ))
$(BUILD)/apps/parts.list: FORCE
	$(call stamp,$(PART_OBJ))

link = $(CC) $(LINK) $(filter %.o %.a,$^) $(1) $(LIBS) -o $@

$(BUILD)/%.o: %.c $(BUILD)/compile.flags
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(COMPILE) $(KERNEL) -MMD -MP -c $< -o $@

$(BUILD)/src/server/ui_page.o: src/server/ui/page.html # embedded with .incbin

$(LIB): $(OBJ) $(BUILD)/library.list
	$(call say,AR,$@)
	@rm -f $@
	$(Q)$(AR) rcs $@ $(OBJ)

$(PARTS): $(PART_OBJ) $(BUILD)/apps/parts.list
	@rm -f $@
	$(Q)$(AR) rcs $@ $(PART_OBJ)

$(APPS): $(BUILD)/%: $(BUILD)/apps/%.o $(PARTS) $(LIB) $(BUILD)/link.flags
	$(call say,LINK,$@)
	$(Q)$(call link,-ledit)

$(BUILD)/golden: $(GOLD_OBJ) $(LIB) $(BUILD)/link.flags
	$(call say,LINK,$@)
	$(Q)$(call link)

.SECONDEXPANSION:
$(BUILD)/tests/fuzz/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $$(call shared,fuzz) $(LIB) $(BUILD)/link.flags
	$(call say,LINK,$@)
	$(Q)$(call link,-fsanitize=fuzzer)

$(BUILD)/tests/%: $(BUILD)/tests/%.o $$(call shared,$$(*D)) $(LIB) $(BUILD)/link.flags
	$(call say,LINK,$@)
	$(Q)$(call link,-lcmocka)

include mk/gpu.mk mk/clients.mk mk/neon.mk

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
.SECONDARY:
.DELETE_ON_ERROR:
