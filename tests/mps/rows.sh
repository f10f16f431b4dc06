# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# rows.sh - for the scripts of this folder: rows of what is wanted and got, and what vgpu-worker prints.

bad=0 rows=()

row() { # row WHAT WANTED GOT OK
	[ "$4" = yes ] || bad=1
	rows+=("$1|$2|${3//|/ }|$4")
}
table() { # table WIDTH... - of the first three columns; fails when a row is not as wanted
	printf '%s\n' "what|wanted|got|ok" "${rows[@]}" |
		awk -F'|' -v form="%-$1s %-$2s %-$3s %s\n" '{ printf form, $1, $2, $3, $4 }'
	return $bad
}
is() { if "$@" >/dev/null 2>&1; then echo yes; else echo NO; fi; }
within() { awk -v x="$1" -v low="$2" -v high="$3" 'BEGIN { exit !(x >= low && x <= high) }'; }
percent() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", (b > 0 ? 100 * a / b : 0) }'; }

# value NAME FILE - a field of the last line of JSON that has it
value() { sed -n "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/p" "$2" 2>/dev/null | tail -1; }
# work_of FILE [AFTER] - units of work a second, of all processes whose lines these are, without
# the first AFTER seconds, at most 2: what a kernel does depends on what its process has measured
# and how many multiprocessors it is told of
work_of() {
	awk -v after="${2:-0}" '
		function number(name) { return match($0, "\"" name "\":[-+.0-9e]+") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) + 0 : 0 }
		/"cmd":"saturate"/ && number("ns_per_unit") > 0 {
			first = match($0, /"first_windows":\[[^]]*/) ? substr($0, RSTART + 17, RLENGTH - 17) : ""
			split(first, window, ",")
			us = number("kernel_us")
			kernels = number("kernels")
			for (i = 1; i <= 10 * after; i++)
				kernels -= window[i] * 100000 / us
			all += kernels / (number("seconds") - after) * (us * 1000 - number("gap_ns")) / number("ns_per_unit") * number("grid")
		}
		END { printf "%.1f", all }' "$1"
}

running() { # running PID - and is no zombie
	local stat
	stat=$(cat "/proc/${1:-none}/stat" 2>/dev/null) && [[ ${stat##*) } != Z* ]]
}
# mps_processes DIRECTORY - daemons and servers that gresd has started with pipes below it: clients have no token
mps_processes() {
	local pid
	for pid in /proc/[0-9]*; do
		if grep -qz "^VGPU_MPS_TOKEN=" "$pid/environ" 2>/dev/null &&
			grep -qz "^CUDA_MPS_PIPE_DIRECTORY=$1/" "$pid/environ" 2>/dev/null; then
			basename "$pid"
		fi
	done | xargs
}
