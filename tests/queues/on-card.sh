#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# on-card.sh [SECONDS] - shares of programs of OpenCL, Vulkan and OpenGL on a real card: alone under a hard
# limit, and beside CUDA. It runs in a private Slurm on a machine whose card nobody uses, with
# libOpenCL.so.1, libvulkan.so.1 and libEGL.so.1 (LIBS: a folder that has them), as a user that can read it:
#
#   cp -r build/tests/queues tests/queues/on-card.sh /tmp/ && mv /tmp/on-card.sh /tmp/queues
#   build/tests/vgpu-cluster -real -user nobody env LIBS= /tmp/queues/on-card.sh
#
# Prints a table of what was wanted and got; fails when a line is not as wanted. About two minutes
# for each API; APIS="opencl" picks one.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
seconds=${1:-6}
bad=0 rows=()
[ -z "${LIBS:-}" ] || export LD_LIBRARY_PATH=$LIBS${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# Where a container has the driver's libraries and not what says so.
if [ -z "${OCL_ICD_VENDORS:-}" ] && ! grep -qs nvidia /etc/OpenCL/vendors/*; then
	mkdir "$out/vendors"
	echo libnvidia-opencl.so.1 >"$out/vendors/nvidia.icd"
	export OCL_ICD_VENDORS=$out/vendors/
fi
if [ -z "${VK_ICD_FILENAMES:-}" ] && ! grep -qs nvidia {/etc,/usr/share}/vulkan/icd.d/*; then
	echo '{"file_format_version": "1.0.0", "ICD": {"library_path": "libGLX_nvidia.so.0", "api_version": "1.3.0"}}' >"$out/nvidia.json"
	export VK_ICD_FILENAMES=$out/nvidia.json
fi
if [ -z "${__EGL_VENDOR_LIBRARY_FILENAMES:-}" ] && ! grep -qs nvidia {/etc,/usr/share}/glvnd/egl_vendor.d/*; then
	echo '{"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}}' >"$out/egl.json"
	export __EGL_VENDOR_LIBRARY_FILENAMES=$out/egl.json
fi

# value NAME FILE - a field of the last line of JSON that has it
value() { sed -n "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/p" "$2" | tail -1; }
percent() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", (b > 0 ? 100 * a / b : 0) }'; }
row() { # row WHAT LEAST MOST GOT
	local ok=yes
	awk -v x="$4" -v low="$2" -v high="$3" 'BEGIN { exit !(x >= low && x <= high) }' || { ok=NO bad=1; }
	rows+=("$1|$2 to $3|$4|$ok")
	echo "on-card: $1: $4, want $2 to $3: $ok" >&2
}
# units FILE - what vgpu-worker did a second
units() {
	awk -v rate="$(value rate "$1")" -v us="$(value kernel_us "$1")" -v gap="$(value gap_ns "$1")" \
		-v unit="$(value ns_per_unit "$1")" 'BEGIN { print (unit > 0 ? rate * (us * 1000 - gap) / unit : 0) }'
}
# in_job SHARE MODE COMMAND... - under a limit, in WRAP where the card is simulated
in_job() {
	local share=$1 mode=$2
	shift 2
	# shellcheck disable=SC2086 # a command in words
	srun --gres=vgpu:"$share" --vgpu-mode="$mode" ${WRAP:-} "$@"
}

# alone API HOW SHARE MODE LEAST MOST [OPTION...] - in percent of what it does without a limit; signal, whose
# host makes a semaphore for each two, of what a full queue does
alone() {
	local api=$1 how=$2 share=$3 mode=$4 least=$5 most=$6
	shift 6
	# shellcheck disable=SC2086
	${WRAP:-} "$here/$api" --how "${how/signal/full}" --units "$unit" --secs 2 "$@" >"$out/native"
	if ! in_job "$share" "$mode" "$here/$api" --how "$how" --units "$unit" --secs "$seconds" "$@" >"$out/job"; then
		row "$api $how, $share % $mode, alone: failed" 1 1 0
		return
	fi
	row "$api $how $*, $share % $mode, alone" "$least" "$most" "$(percent "$(value rate "$out/job")" "$(value rate "$out/native")")"
}

# beside API SHARE - with CUDA, which has the rest
beside() {
	local api=$1 share=$2 rest=$((100 - $2)) wait=12 monotonic real
	monotonic=$(awk -v w=$wait '{ print $1 + w }' /proc/uptime)
	real=$(awk -v t="$(date +%s.%N)" -v w=$wait 'BEGIN { printf "%.3f", t + w }')
	in_job "$share" hard "$here/$api" --units "$unit" --secs "$seconds" --start "$monotonic" >"$out/job" &
	srun --gres=vgpu:$rest --vgpu-mode=hard vgpu-worker --start-at "$real" --saturate "$seconds" >"$out/cuda" || true
	wait $! || true
	row "$api full, $share % beside CUDA's $rest %" $((share - 3)) $((share + 3)) "$(percent "$(value rate "$out/job")" "$native")"
	row "CUDA, $rest % beside $api's $share %" $((rest - 3)) $((rest + 3)) "$(percent "$(units "$out/cuda")" "$cuda")"
}

vgpu-worker --saturate 3 >"$out/cuda"
cuda=$(units "$out/cuda")
for api in ${APIS:-opencl vulkan opengl}; do
	if [ "$api" = opencl ]; then
		# libvgpu asks for events while the program is in clFinish, and launches beside what is held.
		# shellcheck disable=SC2086
		${WRAP:-} "$here/opencl" --how asks --us 500000 | tee "$out/asks" >&2
		row "opencl: asked for an event beside clFinish, at most, us" 0 20000 "$(value ask_most_us "$out/asks")"
		row "opencl: launched what a user event holds, us" 0 20000 "$(value held_us "$out/asks")"
		row "opencl: launched and flushed beside that, us" 0 20000 "$(value beside_held_us "$out/asks")"
	fi
	# shellcheck disable=SC2086
	${WRAP:-} "$here/$api" --secs 2 >"$out/native"
	unit=$(value units "$out/native") native=$(value rate "$out/native")
	echo "on-card: $api: $native of $(value alone_us "$out/native") us a second without a limit" >&2
	alone "$api" full 20 hard 18 22
	alone "$api" full 50 hard 47 53
	alone "$api" one 20 hard 17 22
	alone "$api" two 20 hard 17 23
	if [ "$api" = opencl ]; then
		alone opencl events 20 hard 17 22
		alone opencl reads 20 hard 17 22
		alone opencl held 20 hard 17 22 --depth 20
	elif [ "$api" = opengl ]; then
		alone opengl reads 20 hard 17 22
		alone opengl waits 20 hard 17 22
		alone opengl swap 20 hard 17 22
		alone opengl frames 20 hard 17 23
	else
		alone vulkan polls 20 hard 17 22
		alone vulkan full 20 hard 18 22 --call vkQueueSubmit2
		alone vulkan signal 20 hard 5 22
	fi
	alone "$api" full 20 soft 90 105
	beside "$api" 30
	beside "$api" 70
done
printf '%s\n' "what|wanted|got|ok" "${rows[@]}" | awk -F'|' '{ printf "%-56s %-12s %-8s %s\n", $1, $2, $3, $4 }'
exit $bad
