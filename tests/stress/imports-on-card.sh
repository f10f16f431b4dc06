#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# imports-on-card.sh [LIBVGPU] - exports and imports under a memory limit of 8 GiB, on a real card or a
# simulated one. With LIBVGPU it runs each case natively, and then with that library and a limit from
# the environment:
#
#   cp build/lib/libvgpu.so build/tests/imports build/tests/external build/tests/away tests/stress/imports-on-card.sh /tmp/
#   /tmp/imports-on-card.sh /tmp/libvgpu.so
#
# Without LIBVGPU it belongs into a job with 8 GiB, and runs each case once. It prints the driver's
# own behavior first, then a line for each case: the MiB that cuMemGetInfo and NVML count are in it.
# It fails if a case does.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
programs=${PROGRAMS:-$here}
program=$programs/imports
lib=${1:-}
bad=0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

limited() {
	[ -n "$lib" ] || { "$program" "$@"; return; }
	LD_PRELOAD=$lib CUDA_DEVICE_MEMORY_LIMIT=8G \
		CUDA_DEVICE_MEMORY_SHARED_CACHE=$(mktemp -u "$scratch/cache.XXXX") "$program" "$@"
}
number() { sed -n "s/.*\"$1\":\(-\{0,1\}[0-9.]*\).*/\1/p" <<<"$2"; }
verdict() { # verdict CASE CONDITION RESULT
	if awk "BEGIN { exit !($2) }"; then
		echo "PASS $1: $3"
	else
		echo "FAIL $1: $3" && bad=1
	fi
}

[ -z "$lib" ] || "$program" facts
for case in own dup late fabric pool children; do
	if [ -n "$lib" ]; then
		native=$("$program" "$case" --rounds 3 2>/dev/null) || native="{}"
		echo "     $case natively: $native"
		[ "$(number granted "$native")" = 3 ] || { echo "SKIP $case: this driver does not do it"; continue; }
	fi
	got=$(limited "$case" 2>/dev/null) || got="{}"
	g=$(number granted "$got")
	[ "$case" = children ] && least=1 || least=2
	verdict "$case" "${g:--1} >= $least && ${g:-99} <= 2" "$got"
done
for case in import buffer; do
	got=$(program=$programs/external limited $case 2>/dev/null) || got="{}"
	verdict "external $case" "\"$(number granted "$got")\" == \"2\" && \"$(number used "$got")\" == \"6144\"" "$got"
done
[ -z "$lib" ] || echo "     ipc natively: $("$program" ipc 2>/dev/null || echo "{}")"
got=$(limited ipc 2>/dev/null) || got="{}"
verdict ipc "\"$(number granted "$got")\" == \"1\" && \"$(number with "$got")\" == \"$(number before "$got")\"" "$got"
got=$(limited together 2>/dev/null) || got="{}"
verdict together "\"$(number error "$got")\" == \"0\" && \"$(number with "$got")\" == \"$(number before "$got")\"" "$got"
[ -z "$lib" ] || echo "     many natively: $("$program" many 2>/dev/null || echo "{}")"
got=$(limited many 2>/dev/null) || got="{}"
verdict many "\"$(number taken "$got")\" == \"3072\" && \"$(number freed "$got")\" == \"0\"" "$got"
[ -z "$lib" ] || "$programs/away" facts
for case in away range; do
	if [ -n "$lib" ]; then
		native=$("$programs/away" $case 2>/dev/null) || native="{}"
		echo "     $case natively: $native"
		[ "$(number granted "$native")" = 10 ] || { echo "SKIP $case: this driver does not do it"; continue; }
	fi
	got=$(program=$programs/away limited $case 2>/dev/null) || got="{}"
	verdict $case "\"$(number granted "$got")\" == \"2\" && \"$(number error "$got")\" == \"2\" && \"$(number used "$got")\" == \"6144\" && \"$(number after "$got")\" == \"0\"" "$got"
done
got=$(program=$programs/away limited forked 2>/dev/null) || got="{}"
verdict forked "\"$(number used "$got")\" == \"3072\" && \"$(number after "$got")\" == \"0\"" "$got"
got=$(limited reused 2>/dev/null) || got="{}"
verdict reused "\"$(number used "$got")\" == \"0\"" "$got"
exit $bad
