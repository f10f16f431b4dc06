#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# concurrent-in-slurm.sh [--python P] [--minutes N] - the engine concurrent as its users see it: jobs of two
# users in a private Slurm, on a card that nobody else uses. As root, on a machine with one card:
#
#   build/tests/vgpu-cluster -build build -real -config FILE bash tests/mps/concurrent-in-slurm.sh
#
# FILE is "[mps]" with engines = ["mps", "concurrent"]. Without a
# card: -cards 1 for -real. P has PyTorch, and can be
# read by all users: then it is tried beside vgpu-worker what clients see of a server that ends, and it is among
# those that come and go. N are minutes of jobs that come, go and are killed, 2 where nothing is said.
# STEPS="shares ends" leaves these out.
#
# Prints a table of what was wanted and got; fails when a line is not as wanted.
set -euo pipefail

# shellcheck source=tests/mps/rows.sh
. "$(dirname "$0")/rows.sh"
python='' minutes=2
while [ $# -gt 0 ]; do
	case $1 in
	--python) python=${2:?--python: want a program} ;;
	--minutes) minutes=${2:?--minutes: want a number} ;;
	*) echo "usage: concurrent-in-slurm.sh [--python P] [--minutes N]" >&2 && exit 2 ;;
	esac
	shift 2
done
[ -d /run/cluster/bin ] || { echo "in-slurm: not in vgpu-cluster" >&2; exit 1; }
[ "$(scontrol show node | grep -o 'Gres=gpu:[^,]*' | sed 's/.*://')" = 1 ] || { echo "in-slurm: want one card" >&2; exit 1; }

users=(nobody daemon)
work=/run/in-slurm
mps=/run/vgpu/mps
seconds=12  # of a run whose parts are looked at, without its first two
patience=30 # seconds for a client to end whose server has
declare -A pid=() name=()
rm -rf "$work"
mkdir -p "$work"/{out,"${users[0]}","${users[1]}"}
chmod 1777 "$work"/*

# finish - whatever the end is, with the rows up to there
finish() {
	local code=$?
	table 52 16 96 || code=1
	if [ $code = 0 ]; then
		echo "in-slurm: OK"
	else
		grep -hE 'level=(WARN|ERROR)' /run/cluster/log/gresd*.log 2>/dev/null | tail -30 || true
		echo "in-slurm: FAILED: see the lines marked NO, and what is said above"
	fi
	exit $code
}
trap finish EXIT

real() { [ ! -e /run/cluster/simgpu ]; }
tenths() { echo $((${EPOCHREALTIME/[.,]/} / 100000)); }

# ---- jobs -------------------------------------------------------------------------

as() { # as USER COMMAND...
	local user=$1
	shift
	(cd "$work/$user" && timeout 60 setpriv --reuid "$user" --regid "$(id -g "$user")" --clear-groups \
		env -i PATH="$PATH" HOME="$work/$user" USER="$user" "$@")
}
output() { echo "$work/out/$1"; }
# submit USER SHARE COMMAND [OPTION...] - sets job. Programs that are to be found have VGPU_CLIENT.
submit() {
	job=$(as "$1" sbatch --parsable --output="$work/out/%j" --gres=vgpu:"$2" --vgpu-engine=concurrent \
		--vgpu-mode=soft "${@:4}" --wrap "$3")
}
worker="VGPU_CLIENT=\$SLURM_JOB_ID vgpu-worker --kernel-us 1000"
# measured - what a unit of work takes is measured once, without company
measured() {
	submit "${users[0]}" 100 "vgpu-worker --calibrate"
	ended "$job"
	worker="$worker --unit-ns $(value ns_per_unit "$(output "$job")") --gap-ns $(value gap_ns "$(output "$job")")"
}
clients() { grep -lzsx "VGPU_CLIENT=${1:-[0-9]*}" /proc/[0-9]*/environ | cut -d/ -f3 || true; }
state() { scontrol show job -o "$1" 2>/dev/null | sed -n 's/.* JobState=\([A-Z_]*\) .*/\1/p'; }
# ended JOB - waits, and sets end_state
ended() {
	for _ in $(seq 300); do
		end_state=$(state "$1")
		case $end_state in PENDING | CONFIGURING | RUNNING | COMPLETING | SUSPENDED) sleep 0.2 ;; *) return ;; esac
	done
}
said() { tail -n 2 "$(output "$1")" 2>/dev/null | tr '\n' ' ' | cut -c1-90; }
# up JOB... - waits until their programs work, and sets pid
up() {
	local one
	for one in "$@"; do
		for _ in $(seq 150); do
			pid[$one]=$(clients "$one" | head -1)
			[ -z "${pid[$one]}" ] || break
			sleep 0.2
		done
	done
	sleep 4
}
cancel() { # cancel JOB... - those that have not ended
	local one
	for one in "$@"; do scancel "$one" 2>/dev/null || true; done
}

# ---- what there is on the node --------------------------------------------------------

[ ! -e /run/cluster/simgpu/state ] || PATH=/run/cluster/mps:$PATH # what stands in for NVIDIA's
server() { # the one server of the card
	echo get_server_list | CUDA_MPS_PIPE_DIRECTORY=$(echo "$mps"/*/all/pipe) timeout 10 nvidia-cuda-mps-control 2>/dev/null | xargs || true
}
daemon() { value pid "$(echo "$mps"/*/all.json)" || true; }
used() { # MiB of the card
	if real; then
		nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits
	else
		/run/cluster/simgpu/bin/simgpu status --json --state /run/cluster/simgpu/state | sed -n 's/.*"used": *\([0-9]*\).*/\1/pI' |
			awk '{ print int($1 / 1048576) }'
	fi
}
idle=$(used)
remains() { # what there is of jobs and of MPS
	squeue -h -o 'job %i %T;'
	find /run/vgpu/jobs "$mps" -mindepth 1 -printf '%p;' 2>/dev/null || true
	vgpuctl jobs | sed -n '2,$s/  .*//p'
	for one in $(clients) $(mps_processes "$mps"); do
		echo "$(tr '\0' ' ' <"/proc/$one/cmdline" | cut -c1-60) ($one);"
	done 2>/dev/null
	# A driver that nothing keeps at work has less in use than one whose card was in use just now.
	within "$(used)" 0 $((idle + 64)) || echo "$(used) MiB, $idle before;"
	! real || nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv,noheader
}
nothing_left() { # nothing_left WHEN
	local left
	for _ in $(seq 100); do
		left=$(remains | tr "\n" " ")
		[ -n "$left" ] || break
		sleep 0.3
	done
	row "left $1" nothing "${left:-nothing}" "$(is [ -z "$left" ])"
}

# ---- shares ------------------------------------------------------------------------

# parts WHAT POINTS SHARE:TASKS... - jobs of the two users in turn, at work over the same seconds
parts() {
	local what=$1 points=$2 jobs=() works=() sum=0 start i=0 one got part ok=yes
	shift 2
	start=$(($(date +%s) + 6 + 2 * $#))
	for one in "$@"; do
		submit "${users[i++ % 2]}" "${one%:*}" "srun -n${one#*:} --overcommit --overlap env $worker --start-at $start --saturate $seconds" \
			-n"${one#*:}" --overcommit
		jobs+=("$job")
	done
	sleep $((start - $(date +%s) + 4))
	[ "$(server | wc -w)" = 1 ] || { row "$what: servers" 1 "$(server)" NO; }
	for one in "${jobs[@]}"; do
		ended "$one"
		[ "$end_state" = COMPLETED ] || row "$what: job $one" COMPLETED "$end_state $(said "$one")" NO
		works+=("$(work_of "$(output "$one")" 2)")
	done
	sum=$(IFS=+ && awk "BEGIN { print ${works[*]} }")
	i=0 got=''
	for one in "$@"; do
		part=$(percent "${works[i]}" "$sum")
		i=$((i + 1))
		got="$got$part "
		within "$part" $((${one%:*} - points)) $((${one%:*} + points)) || ok=NO
	done
	row "$what: parts of the work" "each +-$points" "${got}, all $(percent "$sum" "$solo") % of one alone" "$ok"
}

shares() {
	submit "${users[0]}" 100 "$worker --saturate $seconds"
	ended "$job"
	solo=$(work_of "$(output "$job")" 2)
	row "a job alone" "COMPLETED" "$end_state" "$(is [ "$end_state" = COMPLETED ])"
	parts "30 and 70 of two users" 3 30:1 70:1
	parts "four of 25" 3 25:1 25:1 25:1 25:1
	parts "50 of four tasks, 50 of one" 5 50:4 50:1
	nothing_left "after these"
}

# ---- ends ---------------------------------------------------------------------------

killed_client() {
	local one two
	submit "${users[0]}" 30 "$worker --saturate 60"
	one=$job
	submit "${users[1]}" 70 "$worker --saturate 12"
	two=$job
	up "$one" "$two"
	kill -KILL "${pid[$one]}" || true
	ended "$one"
	row "a client gets SIGKILL: its job" FAILED "$end_state" "$(is [ "$end_state" = FAILED ])"
	ended "$two"
	row "...: the job beside it" COMPLETED "$end_state $([ "$end_state" = COMPLETED ] || said "$two")" "$(is [ "$end_state" = COMPLETED ])"
	nothing_left "after that"
}

# torch SECONDS - a command that works for so long, and then exits with work on its way
torch() {
	printf "VGPU_CLIENT=\$SLURM_JOB_ID '%s' -c '%s'" "$python" 'import os, time, torch
x, end = torch.ones(2048, 2048, device="cuda"), time.time() + '"$1"'
while time.time() < end: x @ x; torch.cuda.synchronize()
for _ in range(200): x @ x
os._exit(0)'
}
# company - starts jobs that work, and sets jobs
company() {
	jobs=()
	local wait user=0
	for wait in block spin poll; do
		submit "${users[user]}" 20 "$worker --wait $wait --saturate 90"
		jobs+=("$job") name[$job]="vgpu-worker --wait $wait" user=$((1 - user))
	done
	if [ -n "$python" ]; then
		submit "${users[0]}" 20 "$(torch 90)"
		jobs+=("$job") name[$job]="PyTorch"
	fi
	up "${jobs[@]}"
	[ -z "$python" ] || sleep 10
	before=$(server)
}
# fates WHAT - when and how the programs of jobs end that have lost their server at the time since; then one more job
fates() {
	local what=$1 one now mps_of after
	declare -A ended_at=()
	while now=$(($(tenths) - since)) && [ "$now" -lt $((10 * patience)) ] && [ "${#ended_at[@]}" -lt "${#jobs[@]}" ]; do
		for one in "${jobs[@]}"; do
			[ -n "${ended_at[$one]:-}" ] || running "${pid[$one]}" || ended_at[$one]=$now
		done
		sleep 0.1
	done
	for one in "${jobs[@]}"; do
		if now=${ended_at[$one]:-} && [ -n "$now" ]; then
			ended "$one"
			row "$what: ${name[$one]}" "an error" "$end_state after $((now / 10)).$((now % 10)) s: $(said "$one")" "$(is [ "$end_state" = FAILED ])"
		else
			row "$what: ${name[$one]}" "an error" "hangs" NO
		fi
	done
	cancel "${jobs[@]}"
	submit "${users[1]}" 20 "$worker --report --saturate 8"
	up "$job"
	after=$(server)
	ended "$job"
	mps_of=$(value mps "$(output "$job")")
	row "$what: the next job" "a new server's" "$end_state, mps ${mps_of:-?}, server $before, then $after $([ "$end_state" = COMPLETED ] || said "$job")" \
		"$(is [ "$end_state:$mps_of:${after/#$before/same}" = "COMPLETED:1:$after" ])"
	nothing_left "after $what"
}

ends() {
	killed_client
	company
	since=$(tenths)
	kill -KILL "$(server)" || true
	fates "server killed"
	company
	since=$(tenths)
	kill -KILL "$(daemon)" || true
	fates "daemon killed"
	if real; then
		company
		since=$(tenths)
		submit "${users[1]}" 20 "$worker --fault"
		ended "$job"
		row "an illegal address: its own job" FAILED "$end_state $(said "$job")" "$(is [ "$end_state" = FAILED ])"
		fates "illegal address"
	else
		echo "in-slurm: the simulated card's kernels have no addresses: an illegal one is not tried" >&2
	fi
}

# ---- jobs that come, go and are killed ------------------------------------------------

# pick - one of the jobs that run, into one; false where none does
pick() {
	local all
	mapfile -t all < <(squeue -h -t R -o %i)
	[ "${#all[@]}" -gt 0 ] && one=${all[RANDOM % ${#all[@]}]}
}
churn() {
	local end=$((SECONDS + 60 * minutes)) next=$((SECONDS + 10)) count=0 cancelled=0 killed=0 failed=() size queue program
	declare -A open=() spoiled=()
	while [ $SECONDS -lt $end ] || [ ${#open[@]} -gt 0 ] && [ $SECONDS -lt $((end + 120)) ]; do
		if [ $SECONDS -lt $end ] && [ ${#open[@]} -lt 8 ]; then
			size=$(awk -v r=$RANDOM 'BEGIN { printf "%.1f", 0.5 + 3.5 * r / 32767 }')
			program="$worker --kernel-us $((200 + RANDOM % 2 * 800)) --saturate $size"
			[ -z "$python" ] || [ $((count % 4)) != 0 ] || program=$(torch "$size")
			submit "${users[RANDOM % 2]}" $((5 + RANDOM % 36)) "$program"
			open[$job]=yes count=$((count + 1))
		fi
		if [ $SECONDS -ge $next ] && [ $SECONDS -lt $end ]; then
			next=$((SECONDS + 10))
			if pick; then
				cancel "$one"
				spoiled[$one]=yes cancelled=$((cancelled + 1))
			fi
			if pick && [ -z "${spoiled[$one]:-}" ] && kill -KILL "$(clients "$one" | head -1)" 2>/dev/null; then
				spoiled[$one]=yes killed=$((killed + 1))
			fi
		fi
		queue=" $(squeue -h -o %i | xargs) "
		for one in "${!open[@]}"; do
			if [[ $queue != *" $one "* ]]; then
				ended "$one"
				unset "open[$one]"
				[ "$end_state" = COMPLETED ] || [ -n "${spoiled[$one]:-}" ] || failed+=("$one $end_state: $(said "$one")")
			fi
		done
		sleep 0.2
	done
	row "$minutes minutes of jobs" "all end" "$count, $cancelled cancelled, $killed killed" "$(is [ "${#open[@]}" = 0 ])"
	row "...: failures beside these" 0 "${#failed[@]}" "$(is [ ${#failed[@]} = 0 ])"
	[ ${#failed[@]} = 0 ] || printf 'in-slurm: job %s\n' "${failed[@]}"
	nothing_left "after that"
}

measured
for step in ${STEPS:-shares ends churn}; do
	"$step"
done
row "the node" IDLE "$(sinfo -h -o %T)" "$(is [ "$(sinfo -h -o %T)" = idle ])"
