#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# concurrent-on-card.sh BUILD OUT [FLAGS] - the engine concurrent on a real card.
#
# Needs root, an NVIDIA card that nobody uses, the driver with
# nvidia-cuda-mps-control, and the folder of built programs, or that of tests/bench/bundle. First what the driver
# does, which docs/adr/0013 does not know: a table of what is wanted and what is.
# Then vgpu-bench, for two trainings, inference beside a training, and plain kernels:
# natively, by slices, by this engine, by MPS with and without percentages; within 6
# minutes, in one table. FLAGS are for vgpu-bench, such as --python; results are in OUT.
# Fails when a line is not as wanted.
set -euo pipefail

# shellcheck source=tests/mps/rows.sh
. "$(dirname "$0")/rows.sh"
usage="usage: concurrent-on-card.sh BUILD OUT [FLAGS of vgpu-bench]"
build=$(cd "${1:?$usage}" && pwd)
out=${2:?$usage}
shift 2
control=$(command -v "${VGPU_MPS_CONTROL:-nvidia-cuda-mps-control}") || { echo "vgpu: on-card: no nvidia-cuda-mps-control here" >&2; exit 1; }
PATH=${control%/*}:$PATH # of gresd
[ "$(id -u)" = 0 ] || { echo "vgpu: on-card: not root" >&2; exit 1; }
if [ -d /usr/local/nvidia/lib64 ] && [ -z "${LD_LIBRARY_PATH:-}" ]; then
	export LD_LIBRARY_PATH=/usr/local/nvidia/lib64 # containers that get the driver from their host
fi
users=(65534 65533) # need no names
work=/run/vgpu-mc
daemon='' failed=''

as_user() { # as_user UID [NAME=VALUE...] COMMAND...
	local user=$1
	shift
	setpriv --reuid "$user" --regid "$user" --clear-groups env -i PATH="$PATH" CUDA_VISIBLE_DEVICES=0 \
		${LD_LIBRARY_PATH:+LD_LIBRARY_PATH="$LD_LIBRARY_PATH"} ${SIMGPU_STATE:+SIMGPU_STATE="$SIMGPU_STATE"} "$@"
}
pipe=$work/pipe
client() { local user=$1 && shift && as_user "$user" CUDA_MPS_PIPE_DIRECTORY="$pipe" "$@"; }
tell() { echo "$1" | CUDA_MPS_PIPE_DIRECTORY="$pipe" timeout 10 "$control" 2>&1 | tr '\n' ' '; }
worker=$work/vgpu-worker
rate() { percent "$(work_of "$1")" "$(work_of "$work/solo")"; }
start() { # start - a control daemon, unless it runs
	running "$daemon" && return
	CUDA_VISIBLE_DEVICES=0 CUDA_MPS_PIPE_DIRECTORY="$pipe" CUDA_MPS_LOG_DIRECTORY="$work/log" "$control" -f -M >"$work/daemon" 2>&1 &
	daemon=$!
	for _ in $(seq 100); do [ ! -S "$pipe/control" ] || ! tell get_server_list >/dev/null || break; sleep 0.1; done
}
end() {
	running "$daemon" || return 0
	tell quit >/dev/null || true
	sleep 1
	kill "$daemon" 2>/dev/null || true
}
trap end EXIT

rm -rf "$work"
mkdir -p "$pipe" "$work/log"
chmod 755 "$work" "$pipe"
chmod 700 "$work/log"
install -m 755 "$build/tests/vgpu-worker" "$work"

# ---- one server for two users -------------------------------------------------

as_user "${users[0]}" "$worker" --kernel-us 1000 --saturate 2 >"$work/solo"
as_user "${users[0]}" "$worker" --report >"$work/plain"
row "CUDA's MPS attribute without a daemon" "0" "$(value mps "$work/plain")" "$(is [ "$(value mps "$work/plain")" = 0 ])"
start
row "$(basename "$control") -f -M as root" "runs" "$(tail -1 "$work/daemon" | cut -c1-40)" "$(is running "$daemon")"
both=()
for i in 0 1; do
	client "${users[i]}" "$worker" --kernel-us 1000 --saturate 6 >"$work/user$i" 2>&1 &
	both+=("$!")
done
sleep 4
servers=$(tell get_server_list)
server=${servers%% *}
row "servers for two users" "1" "$servers" "$(is [ "$(wc -w <<<"$servers")" = 1 ])"
row "who runs it" "-" "uid $(stat -c %u "/proc/${server:-0}" 2>/dev/null || echo ?)" yes
client "${users[1]}" "$worker" --report >"$work/report" 2>&1 || true
row "CUDA's MPS attribute in a client" "1" "$(value mps "$work/report")" "$(is [ "$(value mps "$work/report")" = 1 ])"
nvidia-smi >"$work/nvidia-smi" 2>&1 || true
wait "${both[@]}" || true
row "two users' kernels, % of one alone" "50 and 50" "$(rate "$work/user0"), $(rate "$work/user1")" "$(is within "$(rate "$work/user0")" 42 58)"

# ---- what a user can do to the others --------------------------------------------

row "rights of the pipes" "-" "$(find "$pipe" -mindepth 1 -printf '%f %M %u; ' | cut -c1-160)" yes
row "files of a user's in their folder" "refused" "" "$(is as_user "${users[0]}" sh -c "! touch $pipe/x 2>/dev/null")"
for command in "get_server_list" "set_default_active_thread_percentage 50" "quit -t 0"; do
	said=$(client "${users[0]}" sh -c "echo '$command' | timeout 10 '$control' 2>&1 | head -2 | tr '\n' ' '" || true)
	row "a user says: $command" "-" "${said:0:60}" yes
done
sleep 1
row "the daemon after a user's quit" "runs" "" "$(is running "$daemon")"
percent=$(tell get_default_active_thread_percentage)
row "the default after a user's 50" "100" "$percent" "$(is grep -q "^100" <<<"$percent")"

# ---- ends ---------------------------------------------------------------------------

after_end() { # after_end WHAT - the client has an error, and the next program has a server
	for _ in $(seq 100); do [ ! -e "$work/lost.ended" ] || break; sleep 0.1; done
	row "$1: its clients" "an error" "$(tail -c 100 "$work/lost" | tr '\n' ' ')" "$(is grep -qx 1 "$work/lost.ended")"
	for _ in 1 2 3 4 5; do
		client "${users[1]}" "$worker" --report --kernel-us 1000 --saturate 1 >"$work/next" 2>&1 && break
		sleep 1
	done
	row "$1: the next program" "a client" "mps $(value mps "$work/next"), rate $(rate "$work/next")" "$(is [ "$(value mps "$work/next")" = 1 ])"
}
# lose - a client that works until it cannot. It asks for what is done: the driver may not end a wait
# for an event whose server has ended; how such jobs end is for concurrent-in-slurm.sh.
lose() {
	rm -f "$work/lost.ended"
	(client "${users[0]}" "$worker" --kernel-us 1000 --wait poll --saturate 30 >"$work/lost" 2>&1 || echo "$?" >"$work/lost.ended") &
	sleep 3
}
start
lose
kill -KILL "$(tell get_server_list | awk '{ print $1 }')" || true
after_end "server killed"
if [ -z "${SIMGPU_STATE:-}" ]; then # kernels of the simulated card have no addresses
	lose
	client "${users[1]}" "$worker" --fault >"$work/fault" 2>&1 || true
	row "an illegal address: its own program" "an error" "$(tail -c 100 "$work/fault" | tr '\n' ' ')" "$(is grep -q ILLEGAL_ADDRESS "$work/fault")"
	after_end "an illegal address"
fi
end
daemon=

table 44 10 70 || failed=yes
grep -i mps "$work/nvidia-smi" | head -5 || true
echo

# ---- shares and sums --------------------------------------------------------------------

"$build/tests/vgpu-bench" --build "$build" --out "$out" --scenario company --budget "${VGPU_BUDGET:-6m}" --seconds 3s \
	--case '^(T4/T4 30/70 soft|I/T4 30/70 soft|1ms/1ms 30/70)$' --system native,ours,concurrent,mps,mps-free \
	--ours concurrent='mps.engines = ["concurrent"]' --mps --mps-free "$@" || echo "vgpu-bench: $?: see the marks above"
[ -z "$failed" ] || { echo "on-card: FAILED: see the lines marked NO"; exit 1; }
echo "on-card: OK"
