# SPDX-License-Identifier: Apache-2.0
# make help lists the targets. Everything that is built goes into build/.

prefix ?= /usr
sysconfdir ?= /etc
bindir ?= $(prefix)/bin
sbindir ?= $(prefix)/sbin
libdir ?= $(prefix)/lib/vgpu
docdir ?= $(prefix)/share/doc/slurm-vgpu
mandir ?= $(prefix)/share/man
# Lua that slurm.conf's folder links to.
datadir ?= $(prefix)/share/slurm-vgpu
unitdir ?= $(prefix)/lib/systemd/system
# Of vgpuctl, for bash, zsh and fish.
completions = $(addprefix $(prefix)/share/,bash-completion/completions/vgpuctl zsh/vendor-completions/_vgpuctl \
	fish/vendor_completions.d/vgpuctl.fish)
# Where slurmd looks for plugins; Debian's folder unless the site says else.
plugindir ?= $(prefix)/lib/$(shell $(CC) -print-multiarch)/slurm-wlm
pamdir ?= $(prefix)/lib/$(shell $(CC) -print-multiarch)/security

GO ?= go
CC = gcc
# For another kind of processor: make package ARCH=arm64 (packaging/cross).
ARCH ?= $(shell $(GO) env GOARCH)
# Prints the completions: a program that this machine can run.
VGPUCTL ?= $(B)/bin/vgpuctl
VERSION ?= $(shell tools/version)

# The parts' own makefiles add warnings and what else they need.
export CC
# No path of the builder: the same source gives the same bytes anywhere.
export CFLAGS ?= -O2 -g -fstack-protector-strong -D_FORTIFY_SOURCE=2 -ffile-prefix-map=$(CURDIR)=.
# NVIDIA's header marks functions as deprecated that go-nvml wraps all the same.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations

B := build
TOOL = $(GO) tool -modfile=tools/go.mod
# Programs that use C are linked for the glibc of old systems, too.
OLD_GLIBC = $(CURDIR)/$(B)/old-glibc
GOBUILD = $(GO) build -trimpath -buildvcs=false -ldflags "-X main.version=$(VERSION) -buildid= -extldflags=-L$(OLD_GLIBC)"
# C parts, each with a makefile of its own; tests/simgpu also builds tests/gpu.
PARTS = libvgpu spank/plugin tests/simgpu tests/stress/programs tests/adversary/worker tests/bench tests/e2e/escape tests/e2e/unified tests/queues
# make V=1 shows every command.
# The files of a part are compiled beside each other, also where this make has no -j.
JOBS = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))
Q := $(if $(V),,@)
QUIET := $(if $(V),,--silent)

.DEFAULT_GOAL := build
.PHONY: build $(PARTS) go old-glibc etc harness deps test-deps lint-deps analyze analyze-deps package-deps check test test-timing test-long test-go test-e2e test-web test-e2e-matrix test-containers test-install test-package test-arm64 test-adversary test-scale soak lint fmt demo gpu-check gpu-check-bundle \
	fuzz bench bench-pages man platforms package release install uninstall clean help

## build: everything, into build/ (the default)
build: $(PARTS) go etc harness

$(PARTS):
	$(Q)echo "  make  $@"
	$(Q)$(MAKE) --no-print-directory $(QUIET) $(JOBS) -C $@

tests/e2e/escape tests/stress/programs: tests/simgpu

# The static build of vgpu-prolog also proves that it never pulls in NVML.
go: old-glibc
	$(Q)echo "  go    gresd vgpuctl vgpu-prolog vgpu-srun"
	$(Q)mkdir -p $(B)/bin
	$(Q)$(GOBUILD) -buildmode=pie -o $(B)/bin/ ./cmd/gresd ./cmd/vgpuctl
	$(Q)CGO_ENABLED=0 $(GOBUILD) -o $(B)/bin/ ./cmd/vgpu-prolog ./cmd/vgpu-srun

old-glibc:
	$(Q)tools/old-glibc 2.17 $(OLD_GLIBC)

etc:
	$(Q)mkdir -p $(B)/etc
	$(Q)cp -ru etc/. $(B)/etc/

harness:
	$(Q)echo "  go    vgpu-cluster vgpu-demo vgpu-gpu-check vgpu-storm"
	$(Q)mkdir -p $(B)/tests
	$(Q)CGO_ENABLED=0 $(GOBUILD) -o $(B)/tests/vgpu-cluster ./tests/e2e/vgpu-cluster
	$(Q)CGO_ENABLED=0 $(GOBUILD) -o $(B)/tests/vgpu-demo ./tests/demo
	$(Q)CGO_ENABLED=0 $(GOBUILD) -o $(B)/tests/ ./tests/mps/nvidia-cuda-mps-control
	$(Q)CGO_ENABLED=0 $(GOBUILD) -o $(B)/tests/vgpu-gpu-check ./tests/gpu-check
	$(Q)CGO_ENABLED=0 $(GOBUILD) -o $(B)/tests/vgpu-topo-check ./tests/topology/vgpu-topo-check
	$(Q)CGO_ENABLED=0 $(GOBUILD) -o $(B)/tests/vgpu-storm ./tests/storm/vgpu-storm
	$(Q)$(CC) $(CFLAGS) -std=c11 -D_GNU_SOURCE -Wall -Wextra -static -o $(B)/tests/vgpu-storm-slurm tests/storm/slurm/main.c

## deps: install the Debian packages that build, test and demo need (as root)
deps:
	@tools/deps build

test-deps:
	@tools/deps test

lint-deps:
	@tools/deps lint

package-deps:
	@tools/deps package

analyze-deps:
	@tools/deps analyze

## check: without root, in two minutes: formatting, go vet, unit tests of Go and C
check: build
	@tools/lint quick
	@tools/test check

## test: every test there is, on a private Slurm with simulated cards (as root); TEST_TIMEOUT=1h for each package, on a slow machine
test: test-deps build
	@TEST_TIMEOUT=$(TEST_TIMEOUT) tools/test all

## test-go: go test of PKG (./gresd/... ./cmd/...) with the flags of the build; RUN=regexp picks some
test-go:
	@$(GO) test $(if $(RUN),-run '$(RUN)') $(or $(PKG),./gresd/... ./cmd/...)

## test-e2e: only the tests on the private Slurm (as root); RUN=regexp picks some
test-e2e: test-deps build
	@tools/test e2e $(if $(RUN),'$(RUN)')

## test-timing: only the tests that look at a clock, with nothing beside (as root)
test-timing: test-deps build
	@tools/test timing

## test-long: what takes hours: the tests that have a longer form, in that (as root)
test-long: test-deps build
	@tools/test long

## test-web: the page of vgpuctl web in chromium (as root, which installs it); pictures in build/web; RUN=regexp picks some
test-web: build
	@tools/deps web
	@cd tests/web && $(GO) test -count=1 -timeout 20m -v $(if $(RUN),-run '$(RUN)') ./...

## test-e2e-matrix: the tests on the private Slurm of several releases (as root); SUITES="trixie sid"
test-e2e-matrix: build
	@tools/deps matrix
	@tests/e2e/matrix $(SUITES)

## test-adversary: random programs in a job with a hard limit on the simulated card; TIME=1h
test-adversary: $(PARTS)
	@VGPU_ADVERSARY=$(or $(TIME),1h) $(GO) test -count=1 -timeout 24h ./tests/adversary -run '^TestNewSeeds$$' -v

## test-scale: what 1,000 nodes ask of one slurmctld with 20,000 jobs (as root); VGPU_SCALE_NODES, _JOBS, _WINDOW_S for less
test-scale: build
	@VGPU_SCALE=1 $(GO) test -count=1 -timeout 3h ./tests/scale -v

## soak: half an hour of random jobs under a checker that looks for leaks (as root); logs in build/faults/TestSoak
soak: build
	@VGPU_LONG=1 $(GO) test -count=1 -timeout 3h ./tests/faults -run '^TestSoak$$' -v

## test-containers: shares in Podman, Apptainer and bubblewrap, on systems that have them (as root); SUITES=sid
test-containers: build
	@tools/deps matrix
	@tests/e2e/containers $(SUITES)

## test-install: INSTALL.md word for word on clusters with Slurm 22.05 and 26.05 (as root); SUITES="bookworm" SHAPES="one opt" FROM=trixie
test-install: build
	@tools/deps matrix
	@tests/install/install $(SUITES)

## test-package: the same bytes twice; install, upgrade and rollback under jobs, remove, purge (as root); SUITE=sid
test-package: build
	@tools/deps matrix
	@tools/deps package
	@tests/install/packages $(SUITE)

## test-arm64: libvgpu, its tests and gresd's on an emulated arm64, with pages of 4 and 64 KiB (root installs what they need)
test-arm64:
	@tools/deps test-arm64
	@tests/arm64

## demo: show three jobs that share one card (as root)
demo: deps build
	@$(B)/tests/vgpu-demo

## gpu-check: on a machine with an NVIDIA card, check shares with PyTorch (as root)
gpu-check:
	@tests/gpu-check/gpu-check

## gpu-check-bundle: folder build/gpu-check with all that gpu-check needs elsewhere
gpu-check-bundle: build
	@tests/bench/baseline $(B)/baseline
	@tests/gpu-check/bundle $(B)/gpu-check

## bench: with an NVIDIA card, measure how shares are kept (as root); BENCH='--budget 8m', see tests/bench/README.md
bench: build
	@$(B)/tests/vgpu-bench --out $(B)/bench $(BENCH)

## bench-pages: docs/benchmarks.md and its charts, from docs/benchmarks/VERSION
bench-pages:
	@$(GO) run ./tests/bench/pages docs docs

## lint: formatting, vet, staticcheck, shellcheck, house rules
lint: lint-deps build
	@tools/lint

## analyze: static analysis of C and Go, races, hardening of what is built; STEPS="tidy race" picks some
analyze: analyze-deps build
	@tools/analyze $(STEPS)

## fuzz: every fuzz target, FUZZTIME=10m of processor time each; FUZZ=regexp picks some
fuzz: analyze-deps build
	@tools/fuzz $(or $(FUZZTIME),1m) $(if $(FUZZ),'$(FUZZ)')

## fmt: format Go and C in place
fmt:
	$(TOOL) gofumpt -w $$(git ls-files -co --exclude-standard '*.go')
	clang-format-19 -i $$(git ls-files -co --exclude-standard '*.c' '*.h')

## man: the manual pages in docs/man, from their texts and the programs
man:
	VGPU_UPDATE_MAN=1 $(GO) test -count=1 -run 'TestManPage$$' ./cmd/gresd ./cmd/vgpuctl ./cmd/vgpu-prolog \
		./gresd/config ./spank/srun

## platforms: docs/platforms.md, from what the tests have written down
platforms:
	@$(GO) run ./tests/platforms/vgpu-platforms

## install: programs, libraries, unit and examples under prefix (DESTDIR works)
install: libvgpu spank/plugin tests/bench go
	install -d $(DESTDIR)$(bindir) $(DESTDIR)$(sbindir) $(DESTDIR)$(libdir) $(DESTDIR)$(plugindir) \
		$(DESTDIR)$(unitdir) $(DESTDIR)$(docdir)/examples $(DESTDIR)$(datadir) $(foreach n,1 5 8,$(DESTDIR)$(mandir)/man$n)
	install -m 755 $(B)/bin/vgpuctl $(B)/bin/vgpu-srun $(DESTDIR)$(bindir)
	install -m 755 $(B)/bin/gresd $(B)/bin/vgpu-prolog $(DESTDIR)$(sbindir)
	install -m 644 $(B)/lib/libvgpu.so $(DESTDIR)$(libdir)
	install -m 644 $(B)/spank/vgpu.so $(DESTDIR)$(plugindir)
	if [ -e $(B)/spank/pam_vgpu.so ]; then install -D -m 644 -t $(DESTDIR)$(pamdir) $(B)/spank/pam_vgpu.so; fi
	install -m 644 etc/systemd/* $(DESTDIR)$(unitdir)
	install -d $(addprefix $(DESTDIR)$(libdir)/bench/,bin lib tests)
	install -m 755 $(B)/tests/vgpu-bench $(B)/tests/vgpu-load $(DESTDIR)$(libdir)/bench/tests
	install -m 644 $(B)/tests/torch_load.py $(B)/tests/array_load.py $(DESTDIR)$(libdir)/bench/tests
	ln -sf ../../libvgpu.so $(DESTDIR)$(libdir)/bench/lib/libvgpu.so
	ln -srf $(DESTDIR)$(sbindir)/gresd $(DESTDIR)$(libdir)/bench/bin/gresd
	install -d $(dir $(addprefix $(DESTDIR),$(completions)))
	$(VGPUCTL) completion bash >$(DESTDIR)$(word 1,$(completions))
	$(VGPUCTL) completion zsh >$(DESTDIR)$(word 2,$(completions))
	$(VGPUCTL) completion fish >$(DESTDIR)$(word 3,$(completions))
	chmod 644 $(addprefix $(DESTDIR),$(completions))
	install -m 644 etc/slurm/job_submit.lua etc/slurm/cli_filter.lua $(DESTDIR)$(datadir)
	cp -r etc/vgpu.toml etc/slurm etc/grafana etc/prometheus etc/ondemand $(DESTDIR)$(docdir)/examples
	chmod -R u=rwX,go=rX $(DESTDIR)$(docdir)
	install -m 644 LICENSE $(DESTDIR)$(docdir)
	install -m 644 cmd/vgpuctl/web/page/vendor/uplot.LICENSE.txt $(DESTDIR)$(docdir)
	$(foreach n,1 5 8,install -m 644 docs/man/*.$n $(DESTDIR)$(mandir)/man$n &&) true

## uninstall: remove what install put there; configuration stays
uninstall:
	rm -f $(addprefix $(DESTDIR)$(bindir)/,vgpuctl vgpu-srun) \
		$(addprefix $(DESTDIR)$(sbindir)/,gresd vgpu-prolog) \
		$(DESTDIR)$(plugindir)/vgpu.so $(DESTDIR)$(pamdir)/pam_vgpu.so $(addprefix $(DESTDIR),$(completions)) \
		$(addprefix $(DESTDIR)$(unitdir)/,$(notdir $(wildcard etc/systemd/*))) \
		$(foreach n,1 5 8,$(addprefix $(DESTDIR)$(mandir)/man$n/,$(notdir $(wildcard docs/man/*.$n))))
	rm -rf $(DESTDIR)$(libdir) $(DESTDIR)$(docdir) $(DESTDIR)$(datadir)

## package: .deb and .rpm for nodes, the controller and all hosts, into build/packages; ARCH=arm64
ifeq ($(ARCH),$(shell $(GO) env GOARCH))
package: package-deps libvgpu spank/plugin tests/bench go
	@packaging/build
else
package: package-deps go
	@packaging/cross $(ARCH)
endif

## release: source, packages for x86-64 and arm64, bill of materials, SHA256SUMS of what is committed, into build/release
release: package-deps
	@tools/deps package-arm64
	@packaging/release

## clean: remove build/
clean:
	rm -rf $(B)

## help: this list
help:
	@sed -n 's/^## \([a-z0-9-]*\): /  \1\t/p' $(MAKEFILE_LIST) | expand -t 22
