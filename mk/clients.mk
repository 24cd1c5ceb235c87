# clients.mk: the server with real clients, in Node.js (tests/server/sdk, tests/server/ui).
#   make test-sdk       official client libraries
#   make test-ui        the chat page in Chromium

CLIENTS   := tests/server/node_modules/.package-lock.json
SDK_TESTS := $(sort $(wildcard tests/server/sdk/*.test.js))
UI_TESTS  := $(sort $(wildcard tests/server/ui/*.test.js))

.PHONY: test-server test-sdk test-ui

test-server: ## the tests of tests/server without clients in Node.js
	+@$(MAKE) --no-print-directory TESTS=tests/server test

test-sdk: $(BUILD)/moonshine $(BUILD)/moonshine-server $(CLIENTS) ## the server with official client libraries
	@$(RUN_TESTS) $(SDK_TESTS)

test-ui: $(BUILD)/moonshine $(BUILD)/moonshine-server $(CLIENTS) ## the chat page in Chromium
	@tools/install_clients.sh browser
	@$(RUN_TESTS) $(UI_TESTS)

$(CLIENTS): tests/server/package-lock.json tools/install_clients.sh
	@tools/install_clients.sh
	@touch $@
