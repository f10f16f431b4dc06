#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# on-card.sh BUILD [FIXTURE] - on a machine with NVIDIA cards, holds the topology
# that gresd reads against nvidia-smi, cell by cell.
#
# Needs root and nvidia-smi; no Slurm, no job, no program on a card but gresd's
# own probe. gresd runs in a folder of its own and is ended afterwards. FIXTURE
# is written in the form of gresd/topology/testdata.
# VGPU_NVML names another libnvidia-ml.so.1, as of the simulated cards.
# Exit status: 0 all agree, 1 something differs, 2 it could not be compared.
set -euo pipefail

build=$(realpath "${1:?usage: on-card.sh BUILD [FIXTURE]}")
fixture=${2:-}
dir=$(mktemp -d)
gresd=
finish() {
	if [ -n "$gresd" ] && kill "$gresd" 2>/dev/null; then
		wait "$gresd" || true
	fi
	rm -rf "$dir"
}
trap finish EXIT
fail() {
	echo "on-card: $*" >&2
	exit 2
}

[ "$(id -u)" = 0 ] || fail "not root: run it as root"
command -v nvidia-smi >/dev/null || fail "no nvidia-smi here: want a machine with the NVIDIA driver"
for program in bin/gresd bin/vgpuctl tests/vgpu-topo-check; do
	[ -x "$build/$program" ] || fail "$build/$program: not there: run make"
done

cat >"$dir/vgpu.toml" <<TOML
version = 1
[paths]
run_dir = "$dir/run"
state_dir = "$dir/state"
library = "$build/lib/libvgpu.so"
[metrics]
listen = ""
[nvml]
library = "${VGPU_NVML:-}"
TOML
mkdir "$dir/run" "$dir/state"
"$build/bin/gresd" --config "$dir/vgpu.toml" >"$dir/log" 2>&1 &
gresd=$!
vgpuctl() { "$build/bin/vgpuctl" --config "$dir/vgpu.toml" "$@"; }
for _ in $(seq 300); do # cards without persistence mode take seconds each to start
	vgpuctl topo --json >"$dir/topo.json" 2>"$dir/why" && break
	kill -0 "$gresd" 2>/dev/null || break
	sleep 0.2
done
if [ ! -s "$dir/topo.json" ]; then
	cat "$dir/log" "$dir/why" >&2
	fail "gresd does not answer"
fi

section() { printf '\n== %s\n' "$1"; }
section "nvidia-smi topo -m"
nvidia-smi topo -m | tee "$dir/smi"
section "nvidia-smi index"
nvidia-smi --query-gpu=index,uuid --format=csv,noheader | tee "$dir/index"
section "vgpuctl topo"
vgpuctl topo
section "vgpuctl topo --json"
cat "$dir/topo.json"
section "gresd gres-conf"
"$build/bin/gresd" --config "$dir/vgpu.toml" gres-conf
section "gresd's log"
cat "$dir/log"
section "compared"
"$build/tests/vgpu-topo-check" -smi "$dir/smi" -index "$dir/index" -topo "$dir/topo.json" ${fixture:+-fixture "$fixture"}
