# What every step's Makefile includes: the targets of the top that make sense for one step.
NUMBER := $(patsubst step%,%,$(firstword $(subst _, ,$(STEP))))

run check list diff clean:
	@$(MAKE) --no-print-directory -C .. $@ STEP=$(NUMBER)
help:
	@echo "  make run        this step; DEVICE=sim|gpu, ARGS=\"--causal -n 1000\""
	@echo "  make check      is it right on shapes where mistakes show? ARGS=\"--kernel NAME\""
	@echo "  make list       the kernels that there are"
	@echo "  make diff       what changes from the step before; RUNG=2: from this step's rung 1"
	@echo "  make clean      remove what was built of this step"
	@echo "The repository's own Makefile, one folder up, has more."
.PHONY: run check list diff clean help
