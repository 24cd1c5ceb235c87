# GPU backends, included by the Makefile.
#   make GPU=hip ROCM_ARCH="gfx1151 gfx1100"   BUILD/libmoonshine_hip.so beside the programs
#   make GPU=cuda CUDA_ARCH=sm_90              BUILD/libmoonshine_cuda.so
#   make gpu-emu                               BUILD/libmoonshine_emu.so: the same kernels on the CPU, for tests
#   make GPU=cuda test-gpu                     everything that checks them on the device
#   make gpu-check                             everything about the kernels that needs no GPU
# HIP needs ROCm, or on Debian: clang-19 clang-tools-19 lld-19 llvm-19 rocm-device-libs libamdhip64-dev.

GPU       ?=
CUDA_ARCH ?= sm_90
ROCM_ARCH ?= gfx1151 gfx1100
ROCM      ?= $(wildcard /opt/rocm)
NVCC      ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
HIPCXX    ?= $(firstword $(wildcard $(ROCM)/llvm/bin/clang++) $(shell command -v clang++-19))
LLVM_BIN  ?= $(firstword $(wildcard $(ROCM)/llvm/bin) /usr/lib/llvm-19/bin)
# Most vector registers of a kernel on RDNA 3: 120 keep 12 waves on a SIMD (96: 16); kernels of the matrix units may
# have more.  Spills are never accepted.
GPU_VGPRS        ?= 120
GPU_MATRIX_VGPRS ?= 192
ifeq ($(origin CXX),default)
CXX := $(subst clang,clang++,$(subst gcc,g++,$(CC)))
endif

GPU_DIR    := src/backend/gpu
GPU_UNITS  := backend weights install dense moe attention gqa blaslt
# Units with kernels of their own.
GPU_CODE   := weights install dense moe attention gqa blaslt
GPU_DEPS   := $(wildcard $(GPU_DIR)/*.h) $(wildcard src/backend/*.h src/base/*.h src/quant/*.h) \
              include/moonshine/moonshine.h
GPU_WARN   := -Wall -Wextra -Wconversion
GPU_COMMON := -std=c++17 -fPIC -fvisibility=hidden -ffp-contract=off -Iinclude -Isrc
GPU_FMA    := $(if $(filter x86_64,$(shell uname -m)),-mfma)
comma      := ,
# C parts that a library needs besides the kernels.
GPU_C_OBJ  := $(addprefix $(BUILD)/pic/,base/error.o base/text.o base/utf8.o backend/backend.o quant/fp8.o quant/mxfp4.o)
# -z defs: a library that needs a function from the program would load in some programs only.  Sanitizer runtimes are
# in the program.
GPU_LINK   := -shared -Wl,--as-needed $(if $(SAN),,-Wl$(comma)-z$(comma)defs)

EMU_LIB  := $(BUILD)/libmoonshine_emu.so
HIP_LIB  := $(BUILD)/libmoonshine_hip.so
CUDA_LIB := $(BUILD)/libmoonshine_cuda.so

.PHONY: gpu-emu gpu-test gpu-check gpu-check-quick gpu-check-emu gpu-check-orders gpu-check-races gpu-check-self \
        gpu-check-hip gpu-check-cuda
gpu-emu: $(EMU_LIB) ## the GPU backend on the emulator, for tests
ifneq ($(filter-out hip cuda,$(GPU)),)
$(error GPU=$(GPU): expected hip or cuda)
endif
GPU_LIB := $(if $(filter hip,$(GPU)),$(HIP_LIB)) $(if $(filter cuda,$(GPU)),$(CUDA_LIB))
ifneq ($(strip $(GPU_LIB)),)
.PHONY: install-gpu
all: $(GPU_LIB)
install: install-gpu
install-gpu: $(GPU_LIB)
	install -d '$(DESTDIR)$(PREFIX)/lib'
	install -m 755 $(GPU_LIB) '$(DESTDIR)$(PREFIX)/lib'
endif

$(BUILD)/pic/%.o: src/%.c $(BUILD)/compile.flags
	@mkdir -p $(@D)
	$(call say,CC,'$< (library)')
	$(Q)$(CC) $(COMPILE) -fPIC -fvisibility=hidden -MMD -MP -c $< -o $@

# ---------------------------------------------------------------- emulator

EMU_FLAGS = $(OPT) -g $(GPU_WARN) $(GPU_COMMON) $(GPU_FMA) -pthread
$(BUILD)/gpu-emu.flags: FORCE
	$(call stamp,$(CXX) $(EMU_FLAGS) $(SAN))

EMU_OBJ := $(GPU_UNITS:%=$(BUILD)/emu/gpu_%.o)
$(EMU_OBJ): $(BUILD)/emu/%.o: $(GPU_DIR)/%.cpp $(GPU_DEPS) $(BUILD)/gpu-emu.flags
	@mkdir -p $(@D)
	$(call say,CXX,'$< (emulator)')
	$(Q)$(CXX) $(EMU_FLAGS) $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer) \
	    -c $< -o $@

# Never under the race detector: the emulator tells it by hand what orders what.
EMU_SAN = $(filter-out thread,$(SAN))
$(BUILD)/emu/gpu_emu.o: $(GPU_DIR)/gpu_emu.cpp $(GPU_DIR)/gpu_emu.h $(BUILD)/gpu-emu.flags
	@mkdir -p $(@D)
	$(call say,CXX,$<)
	$(Q)$(CXX) $(EMU_FLAGS) $(if $(EMU_SAN),-fsanitize=$(EMU_SAN) -fno-omit-frame-pointer) -c $< -o $@

$(EMU_LIB): $(EMU_OBJ) $(BUILD)/emu/gpu_emu.o $(GPU_C_OBJ)
	$(call say,LINK,$@)
	$(Q)$(CXX) $(GPU_LINK) -pthread $(if $(SAN),-fsanitize=$(SAN)) $^ -o $@

# ---------------------------------------------------------------- AMD

# Without ROCm: Debian's device libraries with the files for newer parts that they lack.
HIP_BITCODE := $(if $(ROCM),,$(BUILD)/hip/bitcode)
HIP_FLAGS    = -x hip -O3 $(GPU_WARN) $(GPU_COMMON) -fno-fast-math \
               $(if $(ROCM),--rocm-path=$(ROCM),--rocm-device-lib-path=$(HIP_BITCODE))
HIP_LIBRARY := $(if $(ROCM),-L$(ROCM)/lib -Wl$(comma)-rpath$(comma)$(ROCM)/lib)
HIP_CHECKED := gfx1151 gfx1100
HIP_READY   := $(and $(HIPCXX),$(or $(ROCM),$(and $(wildcard $(LLVM_BIN)/clang-offload-bundler),\
               $(wildcard /usr/lib/*/amdgcn/bitcode/oclc_isa_version_1030.bc))))

$(BUILD)/hip/bitcode: tools/gpu/hip_bitcode.sh
	@mkdir -p $(@D)
	$(Q)LLVM_BIN=$(LLVM_BIN) $< $@ $(sort $(ROCM_ARCH) $(HIP_CHECKED))
	@touch $@

$(BUILD)/hip.flags: FORCE
	$(call stamp,$(HIPCXX) $(HIP_FLAGS) $(ROCM_ARCH))

HIP_OBJ := $(GPU_UNITS:%=$(BUILD)/hip/gpu_%.o)
$(HIP_OBJ): $(BUILD)/hip/%.o: $(GPU_DIR)/%.cpp $(GPU_DEPS) $(BUILD)/hip.flags | $(HIP_BITCODE)
	@[ -n '$(HIPCXX)' ] || { echo 'GPU=hip: no clang for HIP: install ROCm or clang-19, or set HIPCXX='; exit 2; }
	$(call say,HIP,$<)
	$(Q)$(HIPCXX) $(HIP_FLAGS) $(addprefix --offload-arch=,$(ROCM_ARCH)) -c $< -o $@

$(HIP_LIB): $(HIP_OBJ) $(GPU_C_OBJ)
	$(call say,LINK,$@)
	$(Q)$(HIPCXX) -shared -Wl,--as-needed $(if $(ROCM),--rocm-path=$(ROCM)) $^ $(HIP_LIBRARY) -lamdhip64 -o $@

# BUILD/hip/ARCH/gpu_UNIT.hsaco
define HIP_CODE
$(BUILD)/hip/$(1)/%.hsaco: $(GPU_DIR)/%.cpp $(GPU_DEPS) $(BUILD)/hip.flags | $(HIP_BITCODE)
	@mkdir -p $$(@D)
	$$(call say,HIP,$$@)
	$$(Q)$$(HIPCXX) $$(HIP_FLAGS) --offload-arch=$(1) --cuda-device-only --no-gpu-bundle-output $$< -o $$@
endef
$(foreach a,$(HIP_CHECKED),$(eval $(call HIP_CODE,$(a))))

# ---------------------------------------------------------------- NVIDIA

NVCC_FLAGS = -x cu -std=c++17 -O3 --fmad=false --ftz=false --prec-div=true --prec-sqrt=true -Iinclude -Isrc \
             -Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off,-Wall,-Wextra
$(BUILD)/cuda.flags: FORCE
	$(call stamp,$(NVCC) $(NVCC_FLAGS) $(CUDA_ARCH))

# Code for sm_90 has instructions that only such a device has.
cuda_code = $(patsubst sm_90,sm_90a,$(1))
CUDA_CHECKED := $(sort $(CUDA_ARCH) sm_90 sm_120)
CUDA_OBJ := $(GPU_UNITS:%=$(BUILD)/cuda/gpu_%.o)
$(CUDA_OBJ): $(BUILD)/cuda/%.o: $(GPU_DIR)/%.cpp $(GPU_DEPS) $(BUILD)/cuda.flags
	@[ -n '$(NVCC)' ] || { echo 'GPU=cuda: nvcc is missing: install the CUDA toolkit or set NVCC='; exit 2; }
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVCC_FLAGS) $(foreach a,$(call cuda_code,$(CUDA_ARCH)),-gencode arch=$(a:sm_%=compute_%)$(comma)code=$(a)) \
	    -c $< -o $@

$(CUDA_LIB): $(CUDA_OBJ) $(GPU_C_OBJ)
	$(call say,LINK,$@)
	$(Q)$(NVCC) -shared $^ -o $@

# BUILD/cuda/ARCH/gpu_UNIT.cubin
define CUDA_CODE
$(BUILD)/cuda/$(1)/%.cubin: $(GPU_DIR)/%.cpp $(GPU_DEPS) $(BUILD)/cuda.flags
	@mkdir -p $$(@D)
	$$(call say,NVCC,$$@)
	$$(Q)$$(NVCC) $$(NVCC_FLAGS) -arch=$(call cuda_code,$(1)) -cubin -Xptxas -v,--warn-on-spills,--warn-on-local-memory-usage \
	    $$< -o $$@ >$$@.txt 2>&1 || { cat $$@.txt; rm -f $$@; exit 1; }
endef
$(foreach a,$(CUDA_CHECKED),$(eval $(call CUDA_CODE,$(a))))

# ---------------------------------------------------------------- tests and checks

# tests/gpu loads the library from BUILD and runs the cases of tests/op with its own malloc, whose memory a device sees.
GPU_TESTS := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/gpu/test_*.c))
$(BUILD)/tests/gpu/op_cases_mapped.o: tests/op/op_cases.c $(BUILD)/compile.flags
	@mkdir -p $(@D)
	$(call say,CC,'$< (device memory)')
	$(Q)$(CC) $(COMPILE) -Dmalloc=gpu_test_malloc -Dfree=gpu_test_free -MMD -MP -c $< -o $@
CASE_TESTS := $(addprefix $(BUILD)/tests/gpu/,test_ops_gpu test_gpu_blas)
$(CASE_TESTS): $(BUILD)/tests/gpu/op_cases_mapped.o
# The library comes before that object, which needs it too.
$(CASE_TESTS): LIBS := $(LIB) $(LIBS)
# Loaded by its path, so that the folder is none where libraries are looked for.
EMUBLAS := $(BUILD)/tests/gpu/emublas/libmoonshine_emublas.so
$(BUILD)/tests/gpu/test_gpu_blas: $(EMUBLAS)
$(EMUBLAS): tests/gpu/emublas/emublas.c $(BUILD)/compile.flags
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(COMPILE) -fPIC -shared -Wl,-soname,$(@F) $(if $(SAN),-fsanitize=$(SAN)) $< -o $@
# Kernels called one by one, without a backend around them: always on the emulator.
KERNEL_TESTS := $(patsubst %.cpp,$(BUILD)/%,$(wildcard tests/gpu/test_*.cpp))
$(KERNEL_TESTS): $(BUILD)/%: %.cpp tests/gpu/test_kernels.h $(GPU_DEPS) $(BUILD)/emu/gpu_emu.o $(LIB) \
                 $(wildcard tests/gpu/*.cpp) $(BUILD)/gpu-emu.flags
	@mkdir -p $(@D)
	$(call say,CXX,$@)
	$(Q)$(CXX) $(EMU_FLAGS) $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer) $< \
	    $(BUILD)/emu/gpu_emu.o $(LIB) -Wl,--as-needed $(LIBS) -lcmocka -o $@
# The old tag: it holds for every dlopen of the program, also where a sanitizer's runtime makes the call.
$(GPU_TESTS): LINK += -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/../..'
test tests: $(if $(filter tests/gpu%,$(TESTS)),$(EMU_LIB))
ifneq ($(filter tests/gpu tests/gpu/,$(TESTS)),)
test tests: $(KERNEL_TESTS)
TEST_BIN += $(KERNEL_TESTS)
endif

.PHONY: gpu-need test-gpu
gpu-need:
	@[ -n '$(strip $(GPU_LIB))' ] || { echo 'set GPU=hip or GPU=cuda, as in: make GPU=cuda test-gpu'; exit 2; }

gpu-test: gpu-need $(GPU_LIB) $(EMU_LIB) $(GPU_TESTS) ## with GPU=hip or cuda: the tests of tests/gpu on the device
	@MOONSHINE_TEST_BACKEND=$(GPU) $(RUN_TESTS) $(GPU_TESTS)

test-gpu: gpu-test all golden ## with GPU=hip or cuda: gpu-test, golden vectors and reply quality on the device
	@BUILD='$(BUILD)' tests/gpu/test_device.sh '$(GPU)'

gpu-check: ## GPU kernels without a GPU: emulator in three orders, sanitizers, AMD and NVIDIA code objects
	+@failed=; for t in gpu-check-emu gpu-check-hip gpu-check-cuda; do \
	    $(MAKE) --no-print-directory $$t || failed="$$failed $$t"; done; \
	if [ -n "$$failed" ]; then echo "$@: FAIL:$$failed"; exit 1; fi; echo '$@: PASS'

gpu-check-quick: ## the part of gpu-check that takes minutes, for test.sh
	+@failed=; for t in gpu-check-orders gpu-check-self gpu-check-hip gpu-check-cuda; do \
	    $(MAKE) --no-print-directory $$t >'$(BUILD)'/$$t.log 2>&1 || { failed="$$failed $$t"; cat '$(BUILD)'/$$t.log; }; \
	    grep '^gpu-check:' '$(BUILD)'/$$t.log || true; done; \
	if [ -n "$$failed" ]; then echo "$@: FAIL:$$failed"; exit 1; fi; echo '$@: PASS'

# The orders of threads that a plain run of the tests does not use, on what covers every kernel.
ORDER_TESTS := $(addprefix $(BUILD)/tests/gpu/,test_ops_gpu test_gpu_blas test_kernels_experts test_kernels_gqa test_kernels_kda)
gpu-check-orders: $(EMU_LIB) $(ORDER_TESTS)
	@for o in rev rand; do GPU_EMU_ORDER=$$o GPU_EMU_SEED=7 $(RUN_TESTS) $(ORDER_TESTS) || exit 1; done

# The emulator's own test with each checker: it needs nothing of the library.
SELF_TESTS := $(addprefix $(BUILD)/emu/self-,plain address thread)
$(SELF_TESTS): $(BUILD)/emu/self-%: tests/gpu/test_emulator.cpp tests/gpu/test_kernels.h $(GPU_DIR)/gpu_emu.cpp \
               $(GPU_DEPS) $(BUILD)/gpu-emu.flags
	@mkdir -p $(@D)
	$(call say,CXX,$@)
	$(Q)$(CXX) $(EMU_FLAGS) $(if $(filter plain,$*),,-fsanitize=$*) -c $< -o $@.o
	$(Q)$(CXX) $(EMU_FLAGS) $(if $(filter address,$*),-fsanitize=address) -c $(GPU_DIR)/gpu_emu.cpp -o $@-emu.o
	$(Q)$(CXX) -pthread $(if $(filter plain,$*),,-fsanitize=$*) $@.o $@-emu.o -lcmocka -o $@
gpu-check-self: $(SELF_TESTS)
	@fixed=; if setarch -R true 2>/dev/null; then fixed='setarch -R'; fi; \
	for t in $(SELF_TESTS); do $$fixed $$t || exit 1; done

gpu-check-emu: $(EMU_LIB) $(GPU_TESTS) $(KERNEL_TESTS)
	@for o in fwd rev rand; do echo "emulator, thread order $$o:"; \
	    GPU_EMU_ORDER=$$o GPU_EMU_SEED=7 $(RUN_TESTS) $(GPU_TESTS) $(KERNEL_TESTS) || exit 1; done
	@echo 'emulator, streams as late as they may:'; GPU_EMU_LAZY=1 GPU_EMU_DISCRETE=1 $(RUN_TESTS) $(GPU_TESTS)
	+@echo 'emulator, address and undefined-behaviour checker:'; TEST_SECONDS=1800 \
	    $(MAKE) --no-print-directory BUILD='$(BUILD)-asan' SAN=address,undefined TESTS=tests/gpu test
	+@echo 'emulator, race detector:'; fixed=; if setarch -R true 2>/dev/null; then fixed='setarch -R'; fi; \
	    TEST_SECONDS=1800 $$fixed $(MAKE) --no-print-directory BUILD='$(BUILD)-tsan' SAN=thread gpu-check-races

# With SAN=thread: what covers every kernel, and streams.  The race detector keeps a clock for each thread of each block at
# work, a number for each of the others in it, and adds all of them up at every gpu_sync(): two blocks of 1,024 threads
# show a race between blocks as well as four, and whole models run no other kernels.
RACE_TESTS := $(addprefix $(BUILD)/tests/gpu/,test_ops_gpu test_gpu_blas test_gpu_installs) $(KERNEL_TESTS)
gpu-check-races: $(EMU_LIB) $(RACE_TESTS)
	@GPU_EMU_WORKERS=2 $(RUN_TESTS) $(RACE_TESTS)

# What must be in the code: int8 matrices and dot products, 128-bit loads, the butterfly without memory.
gpu-check-hip: $(if $(HIP_READY),$(foreach a,$(HIP_CHECKED),$(GPU_CODE:%=$(BUILD)/hip/$(a)/gpu_%.hsaco)))
	@[ -n '$(HIP_READY)' ] || echo 'gpu-check: no ROCm and no clang-19 for HIP here: AMD code is not checked'
	@for a in $(if $(HIP_READY),$(HIP_CHECKED)); do echo "$$a:"; : >$(BUILD)/hip/$$a.s; \
	    for u in $(GPU_CODE:%=gpu_%); do code=$(BUILD)/hip/$$a/$$u.hsaco; \
	        LLVM_BIN=$(LLVM_BIN) tools/gpu/check_isa.sh $$code $(GPU_VGPRS) 49152 $(GPU_MATRIX_VGPRS) || exit 1; \
	        $(LLVM_BIN)/llvm-objdump -d --mcpu=$$a $$code >>$(BUILD)/hip/$$a.s; done; \
	    for i in v_wmma_i32_16x16x16_iu8 v_dot4_i32_iu8 global_load_b128 row_xmask v_permlanex16_b32; do \
	        grep -q $$i $(BUILD)/hip/$$a.s || { echo "$$a: no $$i in the code"; exit 1; }; done; done

gpu-check-cuda: $(if $(NVCC),$(foreach a,$(CUDA_CHECKED),$(GPU_CODE:%=$(BUILD)/cuda/$(a)/gpu_%.cubin)))
	@[ -n '$(NVCC)' ] || echo 'gpu-check: nvcc is not here: NVIDIA code is not checked'
	@for a in $(if $(NVCC),$(CUDA_CHECKED)); do echo "$$a:"; \
	    awk '/Compiling entry/ {k = $$7} /Used/ {print k, $$0}' $(BUILD)/cuda/$$a/*.cubin.txt; \
	    if grep -E 'warning|error|serialized|[1-9][0-9]* bytes spill' $(BUILD)/cuda/$$a/*.cubin.txt; then exit 1; fi; done
