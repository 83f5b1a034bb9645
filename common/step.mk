# What every step's Makefile includes: the same targets as at the top, for this step alone.
run list test clean help:
	@$(MAKE) -C .. $@ STEP=$(patsubst step%,%,$(firstword $(subst _, ,$(STEP))))
.PHONY: run list test clean help
