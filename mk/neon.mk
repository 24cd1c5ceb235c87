# AArch64 on another machine, included by the Makefile.
#   make neon-check    cross-compiles everything without a warning and compares the NEON kernels under an emulator
#   make neon-check NEON_CC='aarch64-linux-gnu-gcc --sysroot=DIR' NEON_RUN='qemu-aarch64 -L DIR'
# On an AArch64 machine plain `make` and `make test` do all this.

NEON_CC  ?= aarch64-linux-gnu-gcc
NEON_RUN ?= qemu-aarch64

.PHONY: neon-check
# Op tests: NEON against the scalar table, and both against digests that x86-64 gives too.
neon-check: ## optional: cross-compiles for AArch64, then op tests and golden sets under qemu (minutes)
	@command -v $(firstword $(NEON_CC)) >/dev/null || { echo 'neon-check: $(firstword $(NEON_CC)) is missing'; exit 2; }
	@command -v $(firstword $(NEON_RUN)) >/dev/null || { echo 'neon-check: $(firstword $(NEON_RUN)) is missing'; exit 2; }
	@echo 'int main(void) { return 0; }' | $(NEON_CC) -x c - -o /dev/null $(LIBS) -ledit -lcmocka 2>/dev/null || \
	    { echo 'neon-check: $(NEON_CC) lacks a library: of $(LIBS) -ledit -lcmocka for AArch64'; exit 2; }
	+@$(MAKE) --no-print-directory BUILD='$(BUILD)-neon' CC='$(NEON_CC)' CFLAGS='$(CFLAGS) -Werror' TESTS=tests/op \
	    all tests golden
	@for t in $(patsubst %.c,'$(BUILD)-neon/%',$(call programs,tests/op)) '$(BUILD)-neon/golden tests/golden'; do \
	    echo "  RUN   $$t"; $(NEON_RUN) $$t >'$(BUILD)-neon/log' 2>&1 || { grep -v '^ok ' '$(BUILD)-neon/log'; exit 1; }; \
	    if grep '^neon:.*not compared' '$(BUILD)-neon/log'; then exit 1; fi; done
	@echo 'neon-check: PASS'
