#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh SECONDS OUT [REGEXP] - on a machine without Go or a compiler: runs all fuzz
# targets of this folder whose names match at the same time, each in one process at nice
# 19 for SECONDS on the clock. OUT gets table.txt (a line for each target), crash/ (every
# finding), log/ and learned.tar.gz; where OUT has learned.tar.gz already, from a call
# before, that is where this one begins. Status 1: something was found.
set -u
here=$(cd "$(dirname "$0")" && pwd)
seconds=${1:-} out=${2:-} match=${3:-.}
if ! [[ $seconds =~ ^[0-9]+$ ]] || [ -z "$out" ]; then
	echo "usage: fuzz.sh SECONDS OUT [REGEXP]" >&2
	exit 2
fi
mkdir -p "$out/crash" "$out/log" && out=$(cd "$out" && pwd) || exit 2
memory=/dev/shm # targets that write files are ten times as fast there
[ -w $memory ] && [ "$(df -Pm $memory | awk 'NR == 2 { print $4 }')" -gt 2000 ] || memory=${TMPDIR:-/tmp}
work=$(mktemp -d "$memory/vgpu-fuzz.XXXXXX") || exit 2
trap 'rm -rf "$work"' EXIT
for f in "$here"/*.tar.xz; do tar -xf "$f" -C "$work" || exit 2; done
mkdir -p "$work/learned" "$work/tmp" && touch "$work/began"
[ ! -f "$out/learned.tar.gz" ] || tar -xzf "$out/learned.tar.gz" -C "$work/learned"
export TMPDIR=$work/tmp GOMAXPROCS=1
# shellcheck disable=SC2016 # for the script that is written
printf '#!/bin/sh\nexport LD_LIBRARY_PATH="%s"\nexec "%s" "$@"\n' "$work/bin/lua.d" "$work/bin/lua.d/lua" >"$work/lua"
chmod +x "$work/lua" && export VGPU_LUA=$work/lua
# A tracer that is forbidden would look like a leak; leaks are looked for by make check.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1
# The sanitizer of clang 14 does not start where the kernel spreads addresses widely.
still=()
if setarch "$(uname -m)" -R true 2>/dev/null; then still=(setarch "$(uname -m)" -R); fi

# go FOLDER NAME - one target of Go. Its findings are in the folder's testdata.
run_go() {
	mkdir -p "$work/learned/go/$1"
	cd "$work/src/$1" && nice -n 19 timeout -k 20 $((seconds + 120)) "$work/bin/$(tr / - <<<"$1").test" -test.run '^$' \
		-test.fuzz "^$2\$" -test.fuzztime "${seconds}s" -test.fuzzminimizetime 5s -test.parallel 1 \
		-test.timeout 0 -test.fuzzcachedir "$work/learned/go/$1"
}

run_c() {
	mkdir -p "$work/learned/c/$1"
	cd "$work" && nice -n 19 timeout -k 20 $((seconds + 120)) "${still[@]}" "$work/c/$1" -max_total_time="$seconds" -timeout=25 \
		-len_control=20 -max_len=4096 -print_final_stats=1 -reload=0 -artifact_prefix="$out/crash/c-$1-" \
		"$work/learned/c/$1" "$work/corpus/$1"
}

# target KIND FOLDER NAME - runs it, and writes its line of the table.
target() {
	local kind=$1 name="$2 $3" log status=0 execs new found=0
	log=$out/log/$(tr ' /' '--' <<<"$kind-${name% }")
	shift
	("run_$kind" "$@") >"$log" 2>&1 || status=$?
	times >"$work/times.$BASHPID" # the second line is of what has ended
	if [ "$kind" = go ]; then
		execs=$(awk '/execs: / { for (i = 1; i < NF; i++) if ($i == "execs:") n = $(i + 1) } END { print n + 0 }' "$log")
		new=$(sed -n 's/.*new interesting: \([0-9]*\).*/\1/p' "$log" | tail -n 1)
		# So Go's fuzzer ends when its time is over while it repeats what it knows.
		if [ $status != 0 ] && tail -n 3 "$log" | grep -q 'context deadline exceeded' && ! grep -q 'Failing input' "$log"; then
			status=0
		fi
	else
		execs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
		new=$(sed -n 's/^stat::new_units_added: *//p' "$log")
	fi
	[ $status = 0 ] || found=1
	awk -F '[ms ]+' -v n="$kind $name" -v e="${execs:-0}" -v w="${new:-0}" -v f=$found \
		'NR == 2 { printf "%-42s %12d %9.1f %9d %9d\n", n, e, 60 * $1 + $2 + 60 * $3 + $4, w, f }' \
		"$work/times.$BASHPID" >"$work/line.$BASHPID"
}

began=$SECONDS n=0
while read -r kind folder name; do
	[[ "$kind $folder $name" =~ $match ]] || continue
	n=$((n + 1))
	target "$kind" "$folder" "$name" </dev/null &
done <"$here/targets"
wait
for f in "$work"/src/*/testdata/fuzz/*/* "$work"/src/*/*/testdata/fuzz/*/*; do
	if [ ! -f "$f" ] || [ ! "$f" -nt "$work/began" ]; then continue; fi
	mkdir -p "$out/crash/go/$(dirname "${f#"$work"/src/}")" && cp "$f" "$out/crash/go/${f#"$work"/src/}"
done
tar -czf "$out/learned.tar.gz" -C "$work/learned" .
{
	printf '%-42s %12s %9s %9s %9s\n' target executions 'CPU s' 'new' findings
	cat "$work"/line.* | sort
	awk -v n=$n -v s=$((SECONDS - began)) '{ e += $(NF - 3); c += $(NF - 2); f += $NF; if (min == "" || $(NF - 2) < min) min = $(NF - 2) }
		END { printf "%d targets in %d s: %d executions, %d CPU s, the least %d of a target, %d with a finding\n", n, s, e, c, min, f }' "$work"/line.*
} >"$out/table.txt"
cat "$out/table.txt"
[ -z "$(find "$out/crash" -type f)" ] && awk '/^(c|go) / && $NF { bad = 1 } END { exit bad }' "$out/table.txt"
