# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# machine.sh - for tests that install: machines of their own, with systemd, from
# a Debian suite. Sourced. Everything that they run and write is gone when the
# caller ends, but for systems below RELEASES (tests/e2e/system).
#
#   machine_start SUITE [HOST]   boots one of $machine_hosts as $machine, with a wire to the others and
#                                their /home; default node1
#   machine_use HOST             what follows is for that one
#   machine_run                  runs standard input with bash -e there, as root
#   machine_as USER              the same as a user
#   machine_stop                 all of them

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
releases=${RELEASES:-/var/tmp/slurm-vgpu-releases}
machine=
machine_init=
machine_hosts=(node1)
# By host: its folder, its first process and the parent of that.
declare -A machine_of=() init_of=() boss_of=()
munge_key=$(head -c 96 /dev/urandom | base64 -w 0)

# A layer over the suite's system: packages that a machine has and a folder for
# tests of Slurm alone need not. apt's lists are for packages from files.
layer() {
	local suite=$1 base=$2 layer=$releases/$1-machine
	exec 8>"$releases/$suite-machine.lock"
	flock 8
	if [ ! -e "$layer" ]; then
		rm -rf "$layer.part" "$layer.work" "$layer.root"
		mkdir -p "$layer.part" "$layer.work" "$layer.root"
		mount -t overlay overlay -o "lowerdir=$base,upperdir=$layer.part,workdir=$layer.work" "$layer.root"
		printf '#!/bin/sh\nexit 101\n' >"$layer.root/usr/sbin/policy-rc.d"
		chmod 755 "$layer.root/usr/sbin/policy-rc.d"
		local rc=0
		DEBIAN_FRONTEND=noninteractive chroot "$layer.root" sh -c 'apt-get update -q -o Acquire::Check-Valid-Until=false && apt-get install -y -q \
			--no-install-recommends ca-certificates dbus git iproute2 systemd systemd-sysv' \
			>"$releases/$suite-machine.log" 2>&1 8>&- || rc=$?
		rm -f "$layer.root/usr/sbin/policy-rc.d"
		umount "$layer.root"
		rmdir "$layer.root"
		rm -rf "$layer.work"
		[ $rc = 0 ] || {
			echo "vgpu: install: $suite: see $releases/$suite-machine.log" >&2
			return 1
		}
		mv "$layer.part" "$layer"
	fi
	exec 8>&-
	echo "$layer"
}

# machine_root SUITE [HOST]: a copy of the suite's system that may be written to.
machine_root() {
	local base upper=
	base=$("$top/tests/e2e/system" "$1")
	case $1 in
	*-bare) ;;
	*) upper=$(layer "$1" "$base"): ;;
	esac
	machine=$(mktemp -d /var/tmp/slurm-vgpu-machine.XXXXXX)
	machine_of[${2:-$1}]=$machine
	trap machine_stop EXIT
	mkdir "$machine"/{upper,work,root}
	mount -t overlay overlay -o "lowerdir=$upper$base,upperdir=$machine/upper,workdir=$machine/work" "$machine/root"
}

# boot ROOT HOST HOME: the first process of the machine's namespaces, until systemd takes its place.
boot() {
	mount --make-rprivate /
	mount --bind "$1" "$1"
	mount --bind "$3" "$1/home"
	cd "$1" || return
	mount -t proc proc proc
	mount -t sysfs -o ro sysfs sys
	mount -t cgroup2 cgroup2 sys/fs/cgroup
	mount -t tmpfs -o mode=755 tmpfs run
	mount -t tmpfs -o mode=755 tmpfs dev
	local device
	for device in null zero full random urandom tty; do
		touch dev/$device
		mount --bind /dev/$device dev/$device
	done
	mkdir dev/pts dev/shm
	mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
	ln -s pts/ptmx dev/ptmx
	ln -s /proc/self/fd dev/fd
	mount -t tmpfs -o mode=1777 tmpfs dev/shm
	hostname "$2"
	ip link set lo up
	pivot_root . mnt
	umount -l /mnt
	exec env -i container=vgpu PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=journal
}

# wire HOST: to the bridge in the first machine's network. getaddrinfo wants an address beside 127.0.0.1.
wire() {
	local i first=${init_of[${machine_hosts[0]}]}
	for i in "${!machine_hosts[@]}"; do [ "${machine_hosts[i]}" != "$1" ] || break; done
	if [ "$i" = 0 ]; then
		nsenter -t "$first" -n ip link add wire type bridge
	else
		ip link add wire netns "$machine_init" type veth peer name "wire$i" netns "$first"
		nsenter -t "$first" -n ip link set "wire$i" master wire up
	fi
	nsenter -t "$machine_init" -n sh -c "ip addr add 192.0.2.$((i + 1))/24 dev wire; ip link set wire up"
}

machine_start() {
	local i state host=${2:-node1} boss home
	machine_root "$1" "$host"
	echo "$host" >"$machine/root/etc/hostname"
	echo 127.0.0.1 localhost >"$machine/root/etc/hosts"
	for i in "${!machine_hosts[@]}"; do echo "192.0.2.$((i + 1)) ${machine_hosts[i]}"; done >>"$machine/root/etc/hosts"
	# Nobody logs in, nothing waits for a network, and the kernel is not the machine's to load modules into.
	ln -sf /dev/null "$machine/root/etc/systemd/system/console-getty.service"
	ln -sf /dev/null "$machine/root/etc/systemd/system/systemd-modules-load.service"
	home=${machine_of[${machine_hosts[0]}]}/home
	mkdir -p "$home"
	setsid unshare --mount --pid --uts --ipc --net --cgroup --fork --kill-child \
		bash -c "set -e; $(declare -f boot); boot $machine/root $host $home" >"$machine/boot.log" 2>&1 &
	boss=$!
	boss_of[$host]=$boss
	for i in $(seq 300); do
		machine_init=$(pgrep -P $boss || true)
		init_of[$host]=$machine_init
		# Not "running": a slurmd without a configuration takes its time.
		state=$([ -z "$machine_init" ] || echo systemctl is-active basic.target | machine_run 2>/dev/null) || true
		[ "$state" != active ] || { wire "$host"; return; }
		kill -0 $boss 2>/dev/null || break
		sleep 0.2
	done
	echo "vgpu: install: $1: does not boot ($state, after $i tries): $(cat "$machine/boot.log")" >&2
	return 1
}

machine_use() {
	machine=${machine_of[$1]}
	machine_init=${init_of[$1]}
}

machine_run() {
	nsenter -t "$machine_init" -a -- env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
		PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/sbin:/opt/slurm/bin bash -e -o pipefail -c "cd; $(cat)"
}

machine_as() {
	nsenter -t "$machine_init" -a -- setpriv --reuid "$1" --regid "$1" --init-groups env -i HOME="/home/$1" \
		LANG=C.UTF-8 USER="$1" PATH=/usr/local/bin:/usr/bin:/bin:/opt/slurm/bin bash -e -o pipefail -c "cd; $(cat)"
}

machine_stop() {
	local rc=$? host
	if [ $rc != 0 ] && [ -n "${KEEP:-}" ] && [ -n "$machine_init" ]; then
		nsenter -t "$machine_init" -a -- bash </dev/tty || true
	fi
	for host in "${!init_of[@]}"; do
		[ -z "${init_of[$host]}" ] || kill -KILL "${init_of[$host]}" 2>/dev/null || true
		wait "${boss_of[$host]}" 2>/dev/null || true
	done
	for machine in "${machine_of[@]}"; do
		umount -l "$machine/root"
		rm -rf --one-file-system "$machine"
	done
	machine_of=() init_of=() boss_of=() machine='' machine_init=''
}

# slurm_conf CONTROLLER NODE...: slurm.conf as a site without slurm-vgpu has it.
slurm_conf() {
	local controller=$1
	shift
	cat <<-END
		ClusterName=test
		SlurmctldHost=$controller
		SlurmUser=slurm
		AuthInfo=cred_expire=5
		StateSaveLocation=/var/lib/slurm/slurmctld
		SlurmdSpoolDir=/var/lib/slurm/slurmd
		SlurmctldPidFile=/run/slurmctld.pid
		SlurmdPidFile=/run/slurmd.pid
		ProctrackType=proctrack/linuxproc
		TaskPlugin=task/none
		SelectType=select/cons_tres
		SelectTypeParameters=CR_CPU
		SlurmdParameters=config_overrides
		ReturnToService=2
		HealthCheckInterval=300
		$(printf 'NodeName=%s CPUs=8 State=UNKNOWN\n' "$@")
		PartitionName=main Nodes=ALL Default=YES
	END
}

# slurm_files FOLDER CONTROLLER NODE...: the site's files of Slurm.
slurm_files() {
	local folder=$machine/root$1
	shift
	slurm_conf "$@" >"$folder/slurm.conf"
	echo CgroupPlugin=cgroup/v1 >"$folder/cgroup.conf"
	printf '# Of this site.\nAutoDetect=off\n' >"$folder/gres.conf"
}

# slurm_start DAEMON...: this host's part of a Slurm whose files are there, with user alice.
slurm_start() {
	printf %s "$munge_key" >"$machine/root/etc/munge/munge.key"
	machine_run <<-END
		useradd -m alice 2>/dev/null
		chown munge: /etc/munge/munge.key
		chmod 600 /etc/munge/munge.key
		install -d -o slurm /var/lib/slurm/slurmctld /var/lib/slurm/slurmd
		systemctl restart munge
		for daemon in slurmctld slurmd; do case " $* " in
			*" \$daemon "*) systemctl restart \$daemon ;;
			*) systemctl mask -q --now \$daemon ;;
		esac; done
	END
}

# nodes_idle NODE...: within a minute; slurmctld asks seldom for the end of a job that a restart has lost.
nodes_idle() {
	local i said
	for i in $(seq 300); do
		[ "$i" = 1 ] || sleep 0.2
		# Not -n: of a single node slurmctld 22.05 tells the state that it had when all were last asked for.
		said=$(echo "sinfo -h -N -o '%N %T' | grep -E '^($(IFS='|'; echo "$*")) ' | sort" | machine_run 2>&1) || continue
		[ "$said" != "$(printf '%s idle\n' "$@" | sort)" ] || return 0
	done
	echo "vgpu: install: want $* idle, have $said: $(echo 'sinfo -lN; journalctl -q -n 20 --no-pager -u slurmctld -u slurmd' | machine_run 2>&1)" >&2
	return 1
}

# jobs_work BLOCK NODE...: jobs without a share are taken and run, at whatever step, and steps that a job
# starts. slurmctld may be starting.
# shellcheck disable=SC2154 # out is the caller's
jobs_work() {
	local i node after=$1
	shift
	for node; do
		for i in $(seq 20); do
			[ "$i" = 1 ] || sleep 0.5
			echo "sbatch -Q -w $node --test-only --wrap true 2>&1; [ \$(timeout 20 srun -Q -w $node srun -Q --overlap hostname) = $node ]" |
				machine_as alice >"$out/jobs" 2>&1 && continue 2
		done
		echo "vgpu: install: a job on $node after $after: $(<"$out/jobs"): $(echo sinfo -lN | machine_run 2>&1)" >&2
		return 1
	done
}

# driver_install: the simulated card stands in for NVIDIA's driver: libraries,
# device files and nvidia-smi, as far as INSTALL.md uses it. Arguments: a file of tests/simgpu/configs, its cards.
driver_install() {
	local root=$machine/root
	install -D -t "$root/opt/simgpu/lib" "$top"/build/simgpu/lib/*.so.1
	install -D -t "$root/opt/simgpu/bin" "$top/build/simgpu/bin/simgpu"
	install -m 644 "$top/tests/simgpu/configs/${1:-one-card}.toml" "$root/opt/simgpu/cards.toml"
	install -t "$root/usr/local/bin" "$top/build/tests/vgpu-worker"
	gcc -O1 -Wall -Werror -o "$root/usr/bin/nvidia-smi" "$top/tests/install/nvidia-smi.c" -ldl
	# gresd.service may write to devices and not to /opt.
	ln -s /dev/shm/simgpu "$root/opt/simgpu/state"
	echo /opt/simgpu/lib >"$root/etc/ld.so.conf.d/simgpu.conf"
	machine_run <<-END
		/opt/simgpu/bin/simgpu init --config /opt/simgpu/cards.toml --state /dev/shm/simgpu >/dev/null
		chmod 666 /dev/shm/simgpu
		for i in \$(seq 0 $((${2:-1} - 1))); do mknod -m 666 /dev/nvidia\$i c 195 \$i; done
		ldconfig
	END
}

# blocks: the commands of INSTALL.md, one file in $out/blocks for each block, in
# order: 05.root, with the text that its output must have in 05.root.want and the hosts that run it in
# 05.root.on.
blocks() {
	# shellcheck disable=SC2154 # out and suite are the caller's
	rm -rf "$out/blocks"
	mkdir -p "$out/blocks"
	awk -v out="$out/blocks" '
	function done() { if (file) close(file); file = "" }
	/^<!-- .* -->$/ { how = $0; sub(/^<!-- /, "", how); sub(/ -->$/, "", how); next }
	/^    / {
		if (!file) {
			if (how == "") { print "INSTALL.md:" NR ": want a comment that says how to run this" > "/dev/stderr"; bad = 1 }
			want = ""
			if (i = index(how, ": ")) { want = substr(how, i + 2); how = substr(how, 1, i - 1) }
			on = how ~ /^user/ ? "users" : "all"
			if (i = index(how, " on ")) { on = substr(how, i + 4); how = substr(how, 1, i - 1) }
			gsub(/ /, "-", how)
			file = sprintf("%s/%02d.%s", out, ++n, how)
			print on > (file ".on"); close(file ".on")
			if (want != "") { print want > (file ".want"); close(file ".want") }
			how = ""
		}
		print substr($0, 5) > file
		next
	}
	/^$/ { if (file) done(); next }
	{ done() }
	END { exit bad }' INSTALL.md
}

# run BLOCK [WHERE]: in the machine, of $suite; fails where it does not do what it says.
# What a reader replaces in the commands is in $replaced, for sed.
replaced=
run() {
	local block=$1 log=$1.$suite${2:+.$2}.log rc=0
	case $block in
	*.root) { echo "cd /packages"; sed "$replaced" "$block"; } | machine_run >"$log" 2>&1 || rc=$? ;;
	*.user | *.user-fails) machine_as alice <"$block" >"$log" 2>&1 || rc=$? ;;
	*) echo "vgpu: install: ${block##*/}: want build, root, user or user fails" >&2 && return 1 ;;
	esac
	case $block in
	*-fails) [ $rc != 0 ] || rc=succeeds; [ $rc = succeeds ] || rc=0 ;;
	esac
	if [ $rc = 0 ] && [ -e "$block.want" ] && ! grep -qF -- "$(<"$block.want")" "$log"; then
		rc="no \"$(<"$block.want")\""
	fi
	[ "$rc" != 0 ] || return 0
	echo "vgpu: install: $suite${2:+, $2}: ${block##*/}: $rc:" >&2
	sed 's/^/  /' "$block" >&2
	tail -n 20 "$log" >&2
	return 1
}
