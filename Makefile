# Two builds of the same sources: build/sim (gcc or clang, no GPU needed) and build/gpu (nvcc).
# `make help` lists what can be made; VARIABLE=value on the command line changes the settings below.

ifneq ($(shell uname -sm),Linux x86_64)
$(error This project is tested on Linux on x86-64 only, and this is $(shell uname -sm))
endif

CC       := $(if $(filter default,$(origin CC)),gcc,$(CC))
CXX      := $(if $(filter default,$(origin CXX)),g++,$(CXX))
NVCC     ?= $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
PYTHON   ?= /usr/bin/python3
BUILD    ?= build
# Where `make test` runs: in the simulator, unless DEVICE=gpu is asked for.
TEST_ON  := $(or $(DEVICE),sim)
# The GPU if this machine can build for one and has one, else the simulator.
HAS_GPU  := $(if $(NVCC),$(shell nvidia-smi -L 2>/dev/null))
DEVICE   ?= $(if $(HAS_GPU),gpu,sim)
# For this machine's card; without a card, for all that the steps run on (sm_86 and sm_89 run sm_80's code).
ARCH     ?= $(if $(HAS_GPU),native,75 80 90)
STEP     ?=
ARGS     ?=
# What a file of measurements says of the programs, and has in its name.
COMMIT   ?= $(shell git describe --always --dirty 2>/dev/null)
CARD_NAME = $(shell nvidia-smi --query-gpu=name --format=csv,noheader | sed -n '1{s/^NVIDIA //;s/[ -]/_/g;p}' | tr A-Z a-z)

# A make within make shares the jobs of the one around it.
JOBS      := $(shell case "$$MAKEFLAGS" in (*jobserver*) ;; (*) echo -j$$(nproc) ;; esac)
MAKEFLAGS += $(JOBS) --no-print-directory

WARNINGS := -Wall -Wextra -Werror
# A designated initialiser leaves the rest at zero on purpose. Who takes a call out of a kernel to see what happens may
# leave something unused: that is a warning, and an error only for the tests (CI builds everything with STRICT=1).
STRICT   ?= $(filter test%,$(MAKECMDGOALS))
export STRICT
UNUSED   := variable const-variable but-set-variable parameter but-set-parameter function value label local-typedefs
KERNEL_WARNINGS := $(WARNINGS) -Wno-missing-field-initializers -Wno-unknown-pragmas $(if $(STRICT),,$(UNUSED:%=-Wno-error=unused-%))
# No fused multiply-add on the host: the seeded inputs are the same bits with every compiler.
# -fPIC: the harness and the GPU's kernels are also linked into a library, for tests/peers.py.
CFLAGS   := -std=c11 -D_GNU_SOURCE -O2 -g -fPIC -ffp-contract=off $(WARNINGS) -Icommon -I.
# SANITIZE=address,undefined checks the C files as they run. The kernels stay as they are: their hooks
# are those of another sanitizer, and an object can have only one of the two.
SANITIZE ?=
SANITIZER := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-sanitize-recover=all -DSANITIZED)
CFLAGS   += $(SANITIZER)
IS_CLANG := $(findstring clang,$(shell $(CXX) --version 2>/dev/null))

# How kernels are compiled for the simulator: so that each access and each basic block calls a hook
# (common/sim/memory.c), and so that the code stays in the order of the source. DWARF 4 for clang: of its
# version 5 binutils' addr2line does not unfold the inlined functions, and a profile names the wrong lines.
SIM_gcc    := -O1 -fno-tree-loop-im -fno-thread-jumps -fno-tree-dominator-opts -fno-extern-tls-init -fno-reorder-blocks --param tsan-instrument-func-entry-exit=0 \
              -fsanitize-coverage=trace-pc
SIM_clang  := -O1 -gdwarf-4 -Wno-pass-failed -fno-vectorize -fno-slp-vectorize -mllvm -disable-vector-combine \
              -mllvm -disable-loop-idiom-all -mllvm -licm-mssa-optimization-cap=0 \
              -mllvm -simplifycfg-max-small-block-size=0 \
              -mllvm -tsan-instrument-read-before-write \
              -mllvm -tsan-instrument-func-entry-exit=0 -fsanitize-coverage=trace-pc,no-prune
SIM_CXXFLAGS := -x c++ -std=c++20 -g -fsanitize=thread $(if $(IS_CLANG),$(SIM_clang),$(SIM_gcc)) \
              $(KERNEL_WARNINGS) -Icommon -I. -ffile-prefix-map=$(CURDIR)=.

gencode   = $(foreach a,$(1),-gencode arch=compute_$(a),code=sm_$(a))
GENCODE  := $(if $(filter native,$(ARCH)),-arch=native,$(call gencode,$(ARCH)))
NVFLAGS  := -std=c++20 -O2 -lineinfo -Xcompiler "-fPIC $(KERNEL_WARNINGS)" -Icommon -I.
# Files with instructions that older cards lack (common/ptx.h) are compiled for those that have them,
# and for sm_80 where ARCH names none: the program must link, and does not run such a kernel.
CARD     := $(if $(HAS_GPU),$(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader | sed -n '1s/\.//p'))
AMPERE   := $(call gencode,$(or $(filter-out 7%,$(patsubst native,$(CARD),$(ARCH))),80))
HOPPER   := $(call gencode,90a)

# ---- what is built from what -------------------------------------------------------------------

STEPS    := $(patsubst %/Makefile,%,$(sort $(wildcard step*/Makefile)))
# The step's folder from its number, and the steps whose kernels its program needs besides its own.
step_dir  = $(filter step$(1)_%,$(STEPS))
links_of  = $(shell sed -n 's/^LINKS := //p' $(1)/Makefile)
number_of = $(patsubst step%,%,$(firstword $(subst _, ,$(1))))
kernels   = $(foreach d,$(1),$(patsubst %.cu,%.o,$(wildcard $(d)/*.cu)))

HARNESS  := $(patsubst common/%.c,$(BUILD)/harness/%.o,$(wildcard common/*.c))
LIBRARY  := $(filter-out %/main.o,$(HARNESS))
SIM      := $(patsubst common/%.c,$(BUILD)/%.o,$(wildcard common/sim/*.c))
GPU      := $(patsubst common/%,$(BUILD)/%.o,$(wildcard common/gpu/*.cu common/gpu/*.cpp))
PROGRAMS := ladder train $(foreach s,$(STEPS),step$(call number_of,$(s)))
GPU_TESTS := $(BUILD)/gpu/tests/instructions.o $(BUILD)/gpu/tests/instructions_sm90.o
TEST_C   := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/test_*.c))
TEST_CU  := $(patsubst %.cu,$(BUILD)/sim/%.o,$(filter-out tests/count_instructions.cu,$(wildcard tests/*.cu)))
GALLERY  := $(BUILD)/tests/gallery/gallery.o $(patsubst %.cu,$(BUILD)/sim/%.o,$(wildcard tests/gallery/*.cu))

.PHONY: all sim gpu run check train peers diff need-criterion need-numpy test test-sim test-pages test-values test-programs test-gpu need-gpu need-sim need-matplotlib test-full test-more test-shapes test-sanitized test-clang \
        mutants fill book sram wavefronts backward registers registers-backward curves timelines fp8-table plots deps help list clean bench-sim gallery format numpy-cases
.DELETE_ON_ERROR:
all: sim gpu                ## build all that this machine can build

sim: $(addprefix $(BUILD)/sim/,$(PROGRAMS))

ifneq ($(NVCC),)
gpu: $(addprefix $(BUILD)/gpu/,$(PROGRAMS) kernels.so count_instructions) $(GPU_TESTS)
else
gpu:
	@echo "No nvcc here: built for the simulator only."
endif

# Each command is shown as one word and its target; V=1 shows it whole.
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-6s %s\n' $(1) $@)

# Objects of another compiler, or for another card, are of no use: such a file changes when what it holds does.
hold      = $(shell mkdir -p $(BUILD); echo '$(2)' | cmp -s - $(1) || echo '$(2)' >$(1))
COMPILER := $(BUILD)/compiler
NVCC_FOR := $(BUILD)/nvcc_for
$(call hold,$(COMPILER),$(CC) $(CXX))
$(call hold,$(NVCC_FOR),$(or $(realpath $(NVCC)),$(NVCC)) $(patsubst native,$(CARD),$(ARCH)))

# ---- compiling -----------------------------------------------------------------------------------

$(BUILD)/harness/%.o: common/%.c $(COMPILER)
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/sim/%.o: common/sim/%.c $(COMPILER)
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/sim/%.o: %.cu $(COMPILER)
	@mkdir -p $(@D)
	$(call say,SIM)
	$(Q)$(CXX) $(SIM_CXXFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/tests/%.o: tests/%.c $(COMPILER)
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS) -MMD -MP -c $< -o $@
# ptxas only remarks that it serialises matrix instructions, or ignores setmaxnreg (C7500 to C7599):
# the kernel would be right and slow. Here that is an error.
define COMPILE_CU
	$(Q)$(NVCC) $(NVFLAGS) $(FOR) -MMD -MP -c $< -o $@ 2>$@.log; status=$$?; cat $@.log >&2; \
	! grep -q '(C75[0-9][0-9])' $@.log && rm $@.log && exit $$status
endef
$(BUILD)/gpu/%.cu.o: common/gpu/%.cu $(NVCC_FOR)
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(COMPILE_CU)
$(BUILD)/gpu/%.cpp.o: common/gpu/%.cpp $(NVCC_FOR)
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(COMPILE_CU)
$(BUILD)/gpu/%.o: %.cu $(NVCC_FOR)
	@mkdir -p $(@D)
	$(call say,NVCC)
	$(COMPILE_CU)

# What a file is compiled for. Step05's first rung has none of those instructions.
FOR = $(GENCODE)
$(BUILD)/gpu/$(call step_dir,05)/1_query_tiles.o: FOR = $(GENCODE)
$(BUILD)/gpu/step05_% $(BUILD)/gpu/peak_mma.cu.o $(BUILD)/gpu/tests/instructions.o: FOR = $(AMPERE)
$(BUILD)/gpu/step06_% $(BUILD)/gpu/peak_wgmma.cu.o $(BUILD)/gpu/tests/instructions_sm90.o $(BUILD)/gpu/tests/count_instructions.o: FOR = $(HOPPER)

# ---- linking: a program is the harness, a machine and some kernels ---------------------------------

SIM_LINK = $(Q)$(CXX) $(SANITIZER) -o $@ $(filter %.o,$^) -pthread -lm
GPU_LINK = $(Q)$(NVCC) -o $@ $(filter %.o,$^) $(GENCODE) -ldl

define program    # name, step folders
$(BUILD)/sim/$(1): $(HARNESS) $(SIM) $(addprefix $(BUILD)/sim/,$(call kernels,$(2)))
	$$(call say,LINK)
	$$(SIM_LINK)
$(BUILD)/gpu/$(1): $(HARNESS) $(GPU) $(addprefix $(BUILD)/gpu/,$(call kernels,$(2)))
	$$(call say,LINK)
	$$(GPU_LINK)
endef
$(eval $(call program,ladder,$(STEPS)))
$(foreach s,$(STEPS),$(eval $(call program,step$(call number_of,$(s)),$(s) $(call links_of,$(s)))))

$(BUILD)/sim/run_tests: $(TEST_C) $(TEST_CU) $(GALLERY) $(LIBRARY) $(SIM) $(addprefix $(BUILD)/sim/,$(call kernels,$(STEPS)))
	$(call say,LINK)
	$(SIM_LINK) -lcriterion
$(BUILD)/sim/gallery: $(BUILD)/tests/gallery/main.o $(GALLERY) $(LIBRARY) $(SIM)
	$(call say,LINK)
	$(SIM_LINK)
# The training of step04: no ladder, but a layer that learns, with the kernels of step00, 04 or 05.
TRAINS := $(call kernels,$(foreach n,00 03 04 05,$(call step_dir,$(n))))
$(BUILD)/train.o: $(call step_dir,04)/train.c $(COMPILER)
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS) -MMD -MP -c $< -o $@
$(BUILD)/sim/train: $(BUILD)/train.o $(LIBRARY) $(SIM) $(addprefix $(BUILD)/sim/,$(TRAINS))
	$(call say,LINK)
	$(SIM_LINK)
$(BUILD)/gpu/train: $(BUILD)/train.o $(LIBRARY) $(GPU) $(addprefix $(BUILD)/gpu/,$(TRAINS))
	$(call say,LINK)
	$(GPU_LINK)
# step00 with a few variants of it that only the tests of the command line know.
$(BUILD)/sim/variants: $(BUILD)/tests/variants.o $(HARNESS) $(SIM) $(addprefix $(BUILD)/sim/,$(call kernels,$(call step_dir,00)))
	$(call say,LINK)
	$(SIM_LINK)
$(BUILD)/gpu/run_tests: $(BUILD)/tests/test_kernels.o $(BUILD)/tests/test_instructions.o $(BUILD)/tests/test_instructions_sm90.o $(GPU_TESTS) $(LIBRARY) $(GPU) $(addprefix $(BUILD)/gpu/,$(call kernels,$(STEPS)))
	$(call say,LINK)
	$(GPU_LINK) -lcriterion

# The tests of one step with a fault in it (tests/mutants.py): $(BUILD)/mutants/NAME/run_tests has, instead of
# the kernel file FILE=step00_naive/attention.cu, the copy $(BUILD)/mutants/NAME/step00_naive/attention.cu,
# and where there are headers beside it, in $(BUILD)/mutants/NAME/common or in another step there, with these.
# Of the other steps it has only those that this one needs, and of the tests those of kernels and of this step.
ifneq ($(FILE),)
FILE_STEP := $(patsubst %/,%,$(dir $(FILE)))
FILE_TESTS := $(patsubst %.c,$(BUILD)/%.o,tests/test_kernels.c $(wildcard tests/test_step$(call number_of,$(FILE_STEP))*.c))
FILE_KERNELS := $(addprefix $(BUILD)/sim/,$(call kernels,$(FILE_STEP) $(call links_of,$(FILE_STEP))))
$(BUILD)/mutants/%.o: $(BUILD)/mutants/%.cu
	$(Q)$(CXX) -I$(<D)/.. -I$(<D)/../common $(SIM_CXXFLAGS) -w -I$(FILE_STEP) -c $< -o $@
$(BUILD)/mutants/%/run_tests: $(BUILD)/mutants/%/$(FILE:.cu=.o) $(FILE_TESTS) $(LIBRARY) $(SIM) \
        $(filter-out $(BUILD)/sim/$(FILE:.cu=.o),$(FILE_KERNELS))
	$(SIM_LINK) -lcriterion
endif
# How the memory system counts each instruction: a program of its own, for either machine.
$(BUILD)/sim/count_instructions: $(BUILD)/sim/tests/count_instructions.o $(LIBRARY) $(SIM)
	$(call say,LINK)
	$(SIM_LINK)
$(BUILD)/gpu/count_instructions: $(BUILD)/gpu/tests/count_instructions.o $(LIBRARY) $(GPU)
	$(call say,LINK)
	$(GPU_LINK)
# All kernels as a library, for tests/peers.py.
$(BUILD)/gpu/kernels.so: $(BUILD)/tests/peers.o $(LIBRARY) $(GPU) $(addprefix $(BUILD)/gpu/,$(call kernels,$(STEPS)))
	$(call say,LINK)
	$(GPU_LINK) -shared
$(BUILD)/sim/bench: $(BUILD)/tests/bench_sim.o $(TEST_CU) $(LIBRARY) $(SIM)
	$(call say,LINK)
	$(SIM_LINK)

# ---- running ---------------------------------------------------------------------------------------

ifneq ($(STEP),)
ifeq ($(call step_dir,$(STEP)),)
$(error No step $(STEP); there are: $(foreach s,$(STEPS),$(call number_of,$(s))))
endif
endif
ifeq ($(DEVICE)$(NVCC),gpu)
$(error DEVICE=gpu needs nvcc, which is not here; DEVICE=sim needs only a C compiler)
endif
PROGRAM  := $(BUILD)/$(DEVICE)/$(if $(STEP),step$(STEP),ladder)
# Without ARGS: what the step's Makefile says, or a random input and a real one.
SAMPLE   := $(or $(if $(STEP),$(shell sed -n 's/^SAMPLE := //p' $(call step_dir,$(STEP))/Makefile)),--data normal --load tests/minilm)

run: need-$(DEVICE) $(PROGRAM)    ## the ladder, or STEP=00 alone; DEVICE=sim|gpu, ARGS="--causal -n 1000"
	@$(PROGRAM) $(if $(ARGS),$(ARGS),$(SAMPLE))

# Make turns every exit status into 2; tests/check.sh itself tells wrong (1) from not checked (2). Without STEP a step
# that does not have the kernel named in ARGS does not count, as long as another has.
CHECKED  := $(addprefix $(BUILD)/$(DEVICE)/step,$(or $(STEP),$(foreach s,$(STEPS),$(call number_of,$(s)))))
check: need-$(DEVICE) $(CHECKED)    ## is STEP=03 right where mistakes show? DEVICE=sim|gpu, ARGS="--kernel fused"
	@wrong=0; checked=0; for p in $(CHECKED); do \
	  tests/check.sh $$p $(ARGS); case $$? in (0) checked=1;; (2) ;; (*) wrong=1;; esac; done; \
	[ $$wrong = 0 ] && [ $$checked = 1 ]

# Before anything is compiled for a card that is not there.
need-sim:
need-gpu:
	@$(if $(HAS_GPU),,echo "There is no GPU here$(if $(filter gpu,$(DEVICE)),: leave DEVICE=gpu out and the simulator runs it,, and this needs one)." >&2; exit 3)

train: need-$(DEVICE) $(BUILD)/$(DEVICE)/train    ## a layer learns a toy task; DEVICE=sim|gpu, ARGS="--kernel recompute"
	@$(BUILD)/$(DEVICE)/train $(ARGS)

# With the Python that has PyTorch.
peers: need-gpu $(if $(HAS_GPU),$(BUILD)/gpu/kernels.so)    ## beside FlashAttention-2 and cuDNN (needs PyTorch); ARGS="--kernels fa2"
	python3 tests/peers.py $(ARGS)

list: $(BUILD)/sim/ladder   ## the kernels that there are
	@$< --list

# The ladder's files, rung after rung: those of a step are its .cu files, sorted by name; of two with one number the last,
# for the other is a variant (6_split_k.cu of step05).
RUNG     ?= 1
LADDER    = $(shell ls $(wildcard $(STEPS:%=%/*.cu)) | sort | awk '{ n = $$0; sub("[^/0-9][^/]*$$", "", n) } n != last && last { print file } { last = n; file = $$0 } END { print file }')
RUNGS     = $(filter $(call step_dir,$(STEP))/%,$(LADDER))
NUMBERS   = $(shell seq $(words $(RUNGS)))
THIS      = $(word $(RUNG),$(RUNGS))
BEFORE    = $(shell printf '%s\n' $(LADDER) | awk '$$0 == "$(THIS)" { print last } { last = $$0 }')

diff:                       ## what changes from the step before to STEP=03, or to its RUNG=2
	$(if $(STEP),,$(error make diff needs a step: STEP=01 shows what changes from step 00 to step 01))
	$(if $(filter $(RUNG),$(NUMBERS)),,$(error RUNG=$(RUNG): the rungs of step $(STEP) are $(or $(NUMBERS),none)))
	$(if $(BEFORE),,$(error STEP=$(STEP): nothing comes before its first rung; try STEP=01))
	@(echo "From $(BEFORE) to $(THIS):"; \
	diff -u --color=$(if $(NO_COLOR),never,auto) --label $(BEFORE) --label $(THIS) $(BEFORE) $(THIS); \
	status=$$?; [ $$status -le 1 ] || exit $$status; \
	$(if $(filter 1,$(RUNG)),$(foreach h,$(wildcard $(dir $(THIS))*.h),echo "New beside it: $(h), $$(wc -l <$(h)) lines";))) \
	|| [ $$? = 141 ]    # that is SIGPIPE: make diff | head

test: test-$(TEST_ON)       ## all tests, in the simulator; DEVICE=gpu: the kernels. Needs `make deps` once

# Before anything is compiled, where what the tests need is not there; `make deps test` installs it first.
DEPS      = $(filter deps,$(MAKECMDGOALS))
need-criterion: | $(DEPS)
	@echo '#include <criterion/criterion.h>' | $(CC) -E -x c - >/dev/null 2>&1 || \
	  { echo "the tests need Criterion; make deps installs it" >&2; exit 3; }
need-numpy: | $(DEPS)
	@$(PYTHON) -c "import numpy" 2>/dev/null || { echo "the tests need NumPy; make deps installs it" >&2; exit 3; }
$(TEST_C): | need-criterion
numpy-cases: | need-numpy

# Pages and values are checked side by side, each with a core; then the test programs, which use all.
test-sim: need-criterion need-numpy
	@$(MAKE) test-pages test-values
	@$(MAKE) test-programs

TESTED := sim $(BUILD)/sim/run_tests $(BUILD)/sim/gallery $(BUILD)/sim/variants numpy-cases
test-pages: $(TESTED)
	$(if $(filter build,$(BUILD)),$(PYTHON) notes/fill.py --check $(PAGES))
	$(if $(filter build,$(BUILD)),$(PYTHON) notes/timeline.py --check)
	$(PYTHON) notes/book.py --check
	$(PYTHON) notes/plots.py --check
	$(PYTHON) tests/mutants.py --check $(wildcard tests/mutants/*.txt)
	$(PYTHON) tests/test_book.py
	$(PYTHON) tests/test_mutants.py

# The openings whose output no page quotes: fill.py runs the others.
test-values: $(TESTED)
	@set -e; for f in $(wildcard step*/attention.py step*/backward.py); do \
	  grep -q "run: .*$$f" $(PAGES) || $(PYTHON) $$f >$(BUILD)/attention.out; done
	$(PYTHON) tests/test_openings.py
	$(PYTHON) tests/test_bench.py
	$(PYTHON) tests/test_fp8_table.py $(BUILD)/sim/step06 $(BUILD)/sim/variants
	$(PYTHON) tests/crosscheck.py $(BUILD)/sim/ladder $(BUILD)

# The part of it that depends on the compiler.
test-programs: need-criterion need-numpy
	@$(MAKE) $(TESTED) $(BUILD)/sim/count_instructions
	BUILD=$(BUILD) NUMPY_CASES=$(BUILD)/numpy_cases $(BUILD)/sim/run_tests

test-gpu: need-gpu need-criterion
	@$(MAKE) $(BUILD)/gpu/run_tests
	$(BUILD)/gpu/run_tests

test-full: test             ## test, then more shapes, sanitizers, clang, mutants
	@$(MAKE) test-more

# One after the other, so that each has all cores; the last line is a test runner's.
MORE_sim := test-shapes test-sanitized test-clang mutants
MORE_gpu := test-shapes
test-more:
	@set -e; for part in $(MORE_$(TEST_ON)); do echo "$$(date +%T) make $$part"; $(MAKE) $$part; done

# Every kernel on cases in which every three properties of shape, input and machine meet; `test` has every two.
# And the counts of the longest runs that were counted on an H200.
test-shapes: need-$(TEST_ON) need-criterion
	@$(MAKE) $(BUILD)/$(TEST_ON)/run_tests
	FULL=1 $(BUILD)/$(TEST_ON)/run_tests --filter '@(kernels|hardware)/*'

# The programs' tests again, looking for overflows, use after free, leaks and undefined arithmetic in the C files.
test-sanitized:
	$(MAKE) test-programs BUILD=$(BUILD)/asan SANITIZE=address,undefined

NO_CLANG := clang is not installed: the tests are not run with a second compiler.
test-clang:
	@$(if $(shell command -v clang++),$(MAKE) test-programs BUILD=$(BUILD)/clang CC=clang CXX=clang++,echo "$(NO_CLANG)")

mutants: need-criterion     ## do the tests notice faults planted in the kernels? in all, or in STEP=00
	@$(MAKE) $(BUILD)/sim/run_tests
	@BUILD=$(BUILD) $(PYTHON) tests/mutants.py $(if $(STEP),$(wildcard tests/mutants/step$(STEP)_*.txt),tests/mutants/*.txt)

# What a page is written from: those of the book are made from notes/source.
PAGES    := README.md $(wildcard step*/README.md notes/source/*.md)
fill: need-matplotlib sim $(BUILD)/sim/gallery    ## write what programs print into the pages; make notes/*.md
	$(PYTHON) notes/fill.py $(PAGES)
	$(PYTHON) notes/book.py

curves: $(BUILD)/sim/train  ## train again: notes/results/sim_training.csv
	$< --csv >notes/results/sim_training.csv

book: need-matplotlib       ## the chapters as one page, build/book/book.html
	$(PYTHON) notes/book.py $(BUILD)/book/book.html

need-matplotlib:
	@$(PYTHON) -c "import matplotlib" 2>/dev/null || { echo "The formulas need Matplotlib; make deps installs it" >&2; exit 3; }

# Bytes asked for, by the shared memory that a block may use: among the sizes are those of real cards (48 KB
# without opting in; sm_75 64, sm_86 and sm_89 99, sm_80 163, sm_90 227).
SRAM     := 12K 20K 32K 48K 64K 80K 99K 132K 163K 227K
sram: $(BUILD)/sim/step03   ## count step03's bytes by --sram: notes/results/sim_sram.csv
	@for m in $(SRAM); do $< -n 1024 -H 1 --sram $$m --format csv || exit 1; done >$(BUILD)/sram.csv
	@awk 'NR == 1 || !/^date/' $(BUILD)/sram.csv >notes/results/sim_sram.csv

# Wavefronts of shared memory, of one head without a bank conflict beyond those that the simulator counts.
WAVES    := tiled,blocked,three-passes,two-passes,one-pass,fused,algorithm1,query-tiles,tensor-cores,swizzled,async,lean,split-q,split-k,fa2
wavefronts: $(BUILD)/sim/ladder    ## count wavefronts of shared memory: notes/results/sim_wavefronts.csv
	@$< -n 1024 -H 1 --kernel $(WAVES) --profile --format csv \
	  >$(BUILD)/wavefronts.csv
	@awk -F, '{ gsub(/"([^"]|"")*"/, "") } \
	  NR == 1 { for (i = 1; i <= NF; i++) if ($$i == "wavefronts") w = i; print "kernel,seqlen_q,head_dim,wavefronts,ideal" } \
	  NR > 1 { if ($$2 != last) names[++n] = last = $$2; sum[last] += $$w; ideal[last] += $$(w + 1) } \
	  END { for (i = 1; i <= n; i++) print names[i] ",1024,64," sum[names[i]] "," ideal[names[i]] }' \
	  $(BUILD)/wavefronts.csv >notes/results/sim_wavefronts.csv

# What step05's backwards ask of HBM, of one head by its length, and their tiles on cards of 99, 163 and 227 KB.
BACKWARD := --pass backward --dtype bf16 --kernel fa2-deterministic,fa2-fused --format csv
backward: $(BUILD)/sim/step05    ## count bytes of step05's backwards: notes/results/sim_backward.csv
	@{ for d in 64 128; do for n in 256 512 1024; do $< -n $$n -H 1 -d $$d $(BACKWARD) && \
	     $< -n $$n -H 1 -d $$d --causal $(BACKWARD) || exit 1; done; done; \
	   for m in 99K 163K 227K; do for d in 64 128 256; do $< -n 128 -H 1 -d $$d --sram $$m $(BACKWARD) || exit 1; done; done; \
	 } >$(BUILD)/backward.csv
	@awk 'NR == 1 || !/^date/' $(BUILD)/backward.csv >notes/results/sim_backward.csv

# Registers of the forward rungs of step05 and step06, as nvcc numbers them at launch; without those that pad d, or mask.
# (Rung 6 of step06 has two tilings at d = 64: two lines.)
# And those that step06's consumers use of what setmaxnreg gives them, for FP8.
FP8_OBJECTS := $(patsubst %.cu,$(BUILD)/gpu/%.o,$(wildcard $(call step_dir,06)/*_fp8*.cu))
registers: registers-backward | $(if $(NVCC),$(FP8_OBJECTS))    ## count registers (needs nvcc): notes/results/registers_*.csv
	$(if $(NVCC),,$(error make registers needs nvcc))
	$(call count_registers,90,-arch=sm_90,$(wildcard $(call step_dir,05)/[1-7]_*.cu))
	$(call count_registers,90a,$(HOPPER),$(wildcard $(call step_dir,06)/[1-6]_*.cu))
	$(PYTHON) notes/hopper_registers.py $(FP8_OBJECTS) >notes/results/registers_fp8.csv

define count_registers
@{ echo "# nvcc $$($(NVCC) --version | sed -n 's/.*, V//p'), sm_$(1)"; echo "kernel,dtype,head_dim,registers,spilled"; \
  for f in $(3); do $(NVCC) $(NVFLAGS) $(2) -cubin $$f -o $(BUILD)/registers.cubin || exit 1; \
    cuobjdump --dump-resource-usage $(BUILD)/registers.cubin | c++filt | \
    awk -v name=$$(sed -n 's/^    \.name = "\(.*\)",/\1/p' $$f) ' \
      /Function/ { split($$0, part, /::|<|>/); a = part[3] (part[4] == "tiling" ? " " part[5] : ""); gsub(/step[0-9_]+/, "", a); \
        type = a ~ /half/ ? "fp16" : a ~ /bfloat/ ? "bf16" : "fp32" } \
      /REG:/ && a ~ /[0-9]/ && a !~ /true/ { gsub(/__nv_bfloat16|__half|false.*|[, ]/, "", a); gsub(/[A-Z]+:/, ""); \
        print name "," type "," a "," $$1 "," ($$2 > 0) }'; done; } >notes/results/registers_sm$(1).csv
endef

# Of step05's backwards also the bytes of the stack that a thread spills to, and for which shared memory (KB) the
# kernel of keys is.
registers-backward: $(wildcard $(call step_dir,05)/*backward*.cu)
	$(if $(NVCC),,$(error make registers needs nvcc))
	@{ echo "# nvcc $$($(NVCC) --version | sed -n 's/.*, V//p'), sm_90"; echo "kernel,function,dtype,head_dim,KB,registers,stack"; \
	  for f in $^; do $(NVCC) $(NVFLAGS) -arch=sm_90 -cubin $$f -o $(BUILD)/registers.cubin || exit 1; \
	    cuobjdump --dump-resource-usage $(BUILD)/registers.cubin | c++filt | \
	    awk -v name=$$(sed -n 's/^ *\.name = "\(.*\)",$$/\1/p' $$f) ' \
	      /Function/ { a = $$0; sub(/<.*/, "", a); sub(/.*::/, "", a); type = $$0 ~ /<__half/ ? "fp16" : "bf16"; \
	        sizes = $$0; sub(/.*plan</, "", sizes); sub(/.*(__half|bfloat16), /, "", sizes); split(sizes, size, /[,>]/) } \
	      /REG:/ && a ~ /gradients|query_sums/ { gsub(/[A-Z]+:/, ""); KB = a ~ /gradients/ ? size[2] + 0 : ""; \
	        print name "," a "," type "," size[1] "," KB "," $$1 "," $$2 }'; done; } >notes/results/registers_backward_sm90.csv

timelines: $(BUILD)/sim/step06    ## draw what step06's blocks do: notes/figures/timeline_*.svg
	$(PYTHON) notes/timeline.py

# A small shape in the simulator, a large one on a GPU.
ACCURACY  = $(if $(filter gpu,$(DEVICE)),-H 2 -n 8192 -d 128,-H 2 -n 1024 -d 64)
fp8-table: need-$(DEVICE) $(BUILD)/$(DEVICE)/step06    ## FP8's accuracy, as FlashAttention-3's table: notes/results/*_fp8_accuracy.csv
	@$(PYTHON) tests/fp8_table.py $(BUILD)/$(DEVICE)/step06 $(ACCURACY) --commit "$(COMMIT)" \
	  --out notes/results/$(if $(filter gpu,$(DEVICE)),$(CARD_NAME),sim)_fp8_accuracy.csv $(ARGS)

plots: | $(filter sram curves fp8-table,$(MAKECMDGOALS))    ## draw the results' figures: notes/figures/ladder.svg and others
	$(PYTHON) notes/plots.py

numpy-cases:
	@$(PYTHON) tests/numpy_reference.py $(BUILD)/numpy_cases

gallery: $(BUILD)/sim/gallery    ## a gallery of mistakes; BUG=missing_barrier shows one
	@$< $(BUG)
	@$(if $(BUG),,echo; echo "make gallery BUG=missing_barrier shows one: what is found, and where")

# Files of notes/results to measure again: the ladder and its peers take 13 minutes on an H200. Others are
# fp32 backward step05 step05_peers step05_backward_peers step06 step06_peers fp8_peers.
BENCH    ?= ladder ladder_peers
bench: need-gpu $(if $(HAS_GPU),$(addprefix $(BUILD)/gpu/,ladder step06 kernels.so))    ## on a GPU, measure the ladder and its peers again; BENCH=step06
	@tests/bench.sh $(CARD_NAME) "$(COMMIT)" $(BUILD) $(BENCH)

# The ladder as make run shows it, both passes; and the time that the simulator needs.
bench-sim: $(BUILD)/sim/bench $(BUILD)/sim/ladder    ## bytes and cost of each rung in the simulator: notes/results/sim_*.csv
	@for type in fp32 bf16 fp8; do $(BUILD)/sim/ladder --dtype $$type --pass both --format csv || exit 1; done >$(BUILD)/bench.csv
	@awk -v commit="$(COMMIT)" -f tests/measured.awk $(BUILD)/bench.csv >notes/results/sim_ladder.csv
	@$< >$(BUILD)/bench.csv
	@awk -v commit="$(COMMIT)" -f tests/measured.awk $(BUILD)/bench.csv | tee notes/results/sim_speed.csv

deps:                       ## install what the tests need (Debian, Ubuntu; as root)
	apt-get install -y --no-install-recommends libcriterion-dev python3-numpy python3-matplotlib binutils

format:                     ## lay out the sources with clang-format
	clang-format -i $$(git ls-files '*.c' '*.h' '*.cu' '*.cpp')

clean:                      ## remove what was built; with STEP=00, that step's program and objects alone
	rm -rf $(if $(STEP),$(foreach m,sim gpu,$(addprefix $(BUILD)/$(m)/,step$(STEP) $(call step_dir,$(STEP)))),$(BUILD))

help:                       ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
