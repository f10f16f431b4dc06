#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# on-card.sh BUILD [SECONDS] - MPS as the engine, on a real card.
#
# Needs root, an NVIDIA card that nobody uses, the driver with
# nvidia-cuda-mps-control, and the folder of built programs. It starts gresd in
# a folder of its own with a stand-in for slurmctld, and gives two jobs of one
# user 30 and 70 % of card 0. Prints a table of what was wanted and got; fails
# when a line is not as wanted. Nothing is installed; nothing stays but an empty
# /etc/ld.so.preload and /run/vgpu/self, which gresd makes.
set -euo pipefail

# shellcheck source=tests/mps/rows.sh
. "$(dirname "$0")/rows.sh"
build=$(cd "${1:?usage: on-card.sh BUILD [SECONDS]}" && pwd)
seconds=${2:-8}
control=${VGPU_MPS_CONTROL:-nvidia-cuda-mps-control}
user=65534 other=65533 # need no names
work=/run/vgpu-mps     # short: sockets are below it
gresd='' failed=''

[ "$(id -u)" = 0 ] || { echo "vgpu: on-card: not root" >&2; exit 1; }
control=$(command -v "$control") || { echo "vgpu: on-card: no nvidia-cuda-mps-control here" >&2; exit 1; }
PATH=${control%/*}:$PATH # of gresd
# Containers that get the driver from their host.
if [ -d /usr/local/nvidia/lib64 ] && [ -z "${LD_LIBRARY_PATH:-}" ]; then
	export LD_LIBRARY_PATH=/usr/local/nvidia/lib64
fi

end() {
	for job in 1 2 3 4 5; do release "$job" || true; done
	sleep 1
	[ -z "$gresd" ] || { kill "$gresd" && wait "$gresd"; } 2>/dev/null || true
}

# ---- a stand-in for slurmctld -----------------------------------------------

rm -rf "$work"
mkdir -p "$work"/{bin,jobs,out}
chmod 755 "$work" "$work/bin"
chmod 1777 "$work/out"
install -m 755 "$build/lib/libvgpu.so" "$build/tests/vgpu-worker" "$work/bin"
cat >"$work/bin/scontrol" <<'EOF'
#!/bin/bash
cat "$(dirname "$0")/../jobs/${*: -1}" 2>/dev/null && exit
echo "slurm_load_jobs error: Invalid job id specified" >&2
exit 1
EOF
cat >"$work/bin/squeue" <<'EOF'
#!/bin/bash
cd "$(dirname "$0")/../jobs" && for job in *; do [ "$job" = "*" ] || echo "$job RUNNING"; done
EOF
chmod 755 "$work/bin/scontrol" "$work/bin/squeue"
cat >"$work/vgpu.toml" <<EOF
version = 1
[paths]
run_dir = "$work/run"
state_dir = "$work/state"
library = "$work/bin/libvgpu.so"
[metrics]
listen = ""
[slurm]
scontrol = "$work/bin/scontrol"
[mps]
engines = ["mps"]
EOF

prolog() { # prolog CONTEXT JOB UID [NAME=VALUE...]
	local context=$1 job=$2 uid=$3
	shift 3
	env -i PATH="$PATH" VGPU_CONFIG="$work/vgpu.toml" SLURM_SCRIPT_CONTEXT="$context" SLURM_JOB_ID="$job" \
		SLURM_JOB_UID="$uid" SLURM_JOB_GID="$uid" SLURM_JOB_USER="user$uid" SLURM_JOB_GPUS=0 \
		SLURM_JOB_RESTART_COUNT=0 SLURMD_NODENAME=n1 "$@" "$build/bin/vgpu-prolog"
}
job() { # job JOB UID SHARE [NAME=VALUE...]
	echo "JobId=$1 JobName=j UserId=user$2($2) GroupId=user$2($2) MCS_label=N/A Priority=1 Account=(null)" \
		"JobState=RUNNING Restarts=0 BatchFlag=0 Partition=main NodeList=n1" \
		"JOB_GRES=shard:nv:$3   Nodes=n1 CPU_IDs=0 Mem=0 GRES=shard:nv:$3(IDX:0) MinCPUsNode=1" \
		"TresPerNode=gres:shard:$3" >"$work/jobs/$1"
	prolog prolog_slurmd "$1" "$2" "${@:4}"
}
release() {
	[ -e "$work/jobs/$1" ] || return 0
	rm -f "$work/jobs/$1"
	prolog epilog_slurmd "$1" "$user"
}
# task JOB FILE WORD... - the worker as the job's user, in its environment
task() {
	local job=$1 file=$2 lines
	shift 2
	mapfile -t lines < <(prolog prolog_task "$job" "$user" | sed -n 's/^export //p')
	as_user "${lines[@]}" "$work/bin/vgpu-worker" "$@" >"$work/out/$file" 2>&1
}
as_user() { # as_user [NAME=VALUE...] COMMAND...
	setpriv --reuid "$user" --regid "$user" --clear-groups env -i PATH="$PATH" \
		${LD_LIBRARY_PATH:+LD_LIBRARY_PATH="$LD_LIBRARY_PATH"} "$@"
}
tell() { # tell COMMAND - to the control daemon, as its user
	echo "$1" | as_user CUDA_MPS_PIPE_DIRECTORY="$(pipe)" "$control"
}
pipe() { echo "$work"/run/mps/*/"$user"/pipe; }
start_gresd() {
	"$build/bin/gresd" --config "$work/vgpu.toml" >>"$work/gresd.log" 2>&1 &
	gresd=$!
	for _ in $(seq 200); do
		grep -q "msg=ready" "$work/gresd.log" && [ -S "$work/run/gresd.sock" ] && return
		sleep 0.1
	done
	echo "vgpu: on-card: gresd is not ready:" >&2
	tail -5 "$work/gresd.log" >&2
	exit 1
}

trap end EXIT
start_gresd
for _ in $(seq 100); do # learning what a context costs disturbs what follows
	grep -q '"context cost"' "$work/gresd.log" && break
	sleep 0.1
done

# ---- alone, without MPS or limits -------------------------------------------

as_user "$work/bin/vgpu-worker" --saturate "$seconds" >"$work/out/solo" 2>&1
solo=$(work_of "$work/out/solo")

# ---- two jobs of one user ----------------------------------------------------

job 1 "$user" 30 SPANK_VGPU_ENGINE=mps SPANK_VGPU_MEM=8G
row "job of 30 %" "granted, with its daemon up" "daemon ${daemon:=$(mps_processes "$work")}" "$(is [ -n "$daemon" ])"

start=$(date +%s)
task 1 alone --start-at $((start + 4)) --saturate "$seconds" &
one=$!
sleep 6
kill -KILL "$gresd" # its jobs must not notice
wait "$gresd" 2>/dev/null || true
: >"$work/gresd.log"
start_gresd
wait "$one" || true
got=$(percent "$(work_of "$work/out/alone")" "$solo")
row "30 % alone, gresd killed and started meanwhile" "28 to 32 %" "$got %" "$(is within "$got" 28 32)"
row "its daemon after that" "the same" "$(mps_processes "$work")" "$(is grep -qw "$daemon" <<<"$(mps_processes "$work")")"

job 2 "$user" 70 SPANK_VGPU_ENGINE=mps
start=$(date +%s)
task 1 thirty --start-at $((start + 6)) --saturate "$seconds" &
one=$!
task 2 seventy --start-at $((start + 6)) --saturate "$seconds" &
two=$!
sleep 8
server=$(tell get_server_list | head -1)
clients=$(tell "get_client_list $server" | grep -c '^[0-9]' || true)
nvidia-smi >"$work/out/nvidia-smi" 2>&1 || true
nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv >>"$work/out/nvidia-smi" 2>&1 || true
"$build/bin/vgpuctl" --socket "$work/run/gresd.sock" jobs >"$work/out/jobs" 2>&1 || true
wait "$one" "$two" || true
a=$(percent "$(work_of "$work/out/thirty")" "$solo")
b=$(percent "$(work_of "$work/out/seventy")" "$solo")
sum=$(awk -v a="$a" -v b="$b" 'BEGIN { print a + b }')
row "servers, clients of the daemon" "1, 2" "$(tell get_server_list | wc -w), $clients" "$(is [ "$clients" = 2 ])"
row "30 % beside 70 %" "27.5 to 32.5 %" "$a %" "$(is within "$a" 27.5 32.5)"
row "70 % beside 30 %" "67 to 73 %" "$b %" "$(is within "$b" 67 73)"
row "sum" "at least 97 %" "$sum %" "$(is within "$sum" 97 110)"

# ---- memory --------------------------------------------------------------------

task 1 memory --report --fill || true
limit=$((8 << 30))
row "memory that a client of 8 GiB is told of" "$limit" "$(value total "$work/out/memory")" \
	"$(is [ "$(value total "$work/out/memory")" = "$limit" ])"
taken=$(value granted "$work/out/memory")
row "memory that it takes until it is refused" "at most $limit" "${taken:-none} until $(value error "$work/out/memory")" \
	"$(is within "${taken:-0}" $((7 << 30)) "$limit")"

# ---- refusals ------------------------------------------------------------------

# Shares are full: what is asked here is whether the engine is looked at, so
# job 2 makes room.
release 2
refused() { # refused JOB UID WHAT WORDS [NAME=VALUE...]
	local said
	said=$(job "$1" "$2" 20 "${@:5}" 2>&1) || true
	row "$3" "refused: $4" "${said:0:60}…" "$(is grep -q "refused:.*$4" <<<"$said")"
}
refused 3 "$other" "MPS for another user" "job 1 of user" SPANK_VGPU_ENGINE=mps
refused 4 "$user" "by time beside MPS" "divided by MPS" SPANK_VGPU_ENGINE=time

# ---- the end -------------------------------------------------------------------

for job in 1 3 4; do release "$job"; done
for _ in $(seq 200); do
	[ -n "$(mps_processes "$work")" ] || [ -n "$(find "$work/run/mps" -mindepth 1 2>/dev/null)" ] || break
	sleep 0.1
done
left="$(mps_processes "$work") $(find "$work/run/mps" -mindepth 1 -printf '%P ' 2>/dev/null)"
row "left after the last job" "nothing" "$left" "$(is [ "$left" = " " ])"

table 48 26 26 || failed=yes
echo
cat "$work/out/nvidia-smi" "$work/out/jobs"
if [ -n "$failed" ]; then
	echo "log of gresd:"
	tail -40 "$work/gresd.log"
	for file in solo alone thirty seventy memory; do echo "--- $file"; cat "$work/out/$file" 2>/dev/null || true; done
	echo "on-card: FAILED: see the lines marked NO"
	exit 1
fi
echo "on-card: OK"
