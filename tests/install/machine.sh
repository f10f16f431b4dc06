# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# machine.sh - for tests that install: a machine of its own, with systemd, from
# a Debian suite. Sourced. Everything that it runs and writes is gone when the
# caller ends, but for systems below RELEASES (tests/e2e/system).
#
#   machine_start SUITE   boots it, as $machine; host name node1, only loopback
#   machine_run           runs standard input with bash -e there, as root
#   machine_as USER       the same as a user
#   machine_stop

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
releases=${RELEASES:-/var/tmp/slurm-vgpu-releases}
machine=
machine_init=

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

# machine_root SUITE: a copy of the suite's system that may be written to.
machine_root() {
	local base upper=
	base=$("$top/tests/e2e/system" "$1")
	case $1 in
	*-bare) ;;
	*) upper=$(layer "$1" "$base"): ;;
	esac
	machine=$(mktemp -d /var/tmp/slurm-vgpu-machine.XXXXXX)
	trap machine_stop EXIT
	mkdir "$machine"/{upper,work,root}
	mount -t overlay overlay -o "lowerdir=$upper$base,upperdir=$machine/upper,workdir=$machine/work" "$machine/root"
}

# The first process of the machine's namespaces, until systemd takes its place.
boot() {
	mount --make-rprivate /
	mount --bind "$1" "$1"
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
	hostname node1
	ip link set lo up
	# For getaddrinfo, 127.0.0.1 alone is no address of the family.
	ip addr add 192.0.2.1/32 dev lo
	pivot_root . mnt
	umount -l /mnt
	exec env -i container=vgpu PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=journal
}

machine_start() {
	machine_root "$1"
	echo node1 >"$machine/root/etc/hostname"
	printf '127.0.0.1 localhost node1\n' >"$machine/root/etc/hosts"
	# Nobody logs in, nothing waits for a network, and the kernel is not the machine's to load modules into.
	ln -sf /dev/null "$machine/root/etc/systemd/system/console-getty.service"
	ln -sf /dev/null "$machine/root/etc/systemd/system/systemd-modules-load.service"
	setsid unshare --mount --pid --uts --ipc --net --cgroup --fork --kill-child \
		bash -c "set -e; $(declare -f boot); boot $machine/root" >"$machine/boot.log" 2>&1 &
	machine_boss=$!
	local i state
	for i in $(seq 300); do
		machine_init=$(pgrep -P $machine_boss || true)
		# Not "running": a slurmd without a configuration takes its time.
		state=$([ -z "$machine_init" ] || echo systemctl is-active basic.target | machine_run 2>/dev/null) || true
		[ "$state" != active ] || return 0
		kill -0 $machine_boss 2>/dev/null || break
		sleep 0.2
	done
	echo "vgpu: install: $1: does not boot ($state, after $i tries): $(cat "$machine/boot.log")" >&2
	return 1
}

machine_run() {
	nsenter -t "$machine_init" -a -- env -i HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
		PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -e -o pipefail -c "cd; $(cat)"
}

machine_as() {
	nsenter -t "$machine_init" -a -- setpriv --reuid "$1" --regid "$1" --init-groups env -i HOME="/home/$1" \
		LANG=C.UTF-8 USER="$1" PATH=/usr/local/bin:/usr/bin:/bin bash -e -o pipefail -c "cd; $(cat)"
}

machine_stop() {
	local rc=$?
	[ -n "$machine" ] || return 0
	if [ $rc != 0 ] && [ -n "${KEEP:-}" ] && [ -n "$machine_init" ]; then
		nsenter -t "$machine_init" -a -- bash </dev/tty || true
	fi
	if [ -n "$machine_init" ]; then
		kill -KILL "$machine_init" 2>/dev/null || true
		wait "$machine_boss" 2>/dev/null || true
	fi
	umount -l "$machine/root"
	rm -rf --one-file-system "$machine"
	machine=
}

# slurm_start: Slurm as a site without slurm-vgpu has it, with user alice.
slurm_start() {
	head -c 128 /dev/urandom >"$machine/root/etc/munge/munge.key"
	machine_run <<-'END'
		useradd -m alice
		chown munge: /etc/munge/munge.key
		chmod 600 /etc/munge/munge.key
		install -d -o slurm /var/lib/slurm/slurmctld /var/lib/slurm/slurmd
		cat >/etc/slurm/slurm.conf <<EOF
		ClusterName=test
		SlurmctldHost=node1
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
		NodeName=node[1] CPUs=8 State=UNKNOWN
		PartitionName=main Nodes=ALL Default=YES
		EOF
		echo CgroupPlugin=cgroup/v1 >/etc/slurm/cgroup.conf
		printf '# Of this site.\nAutoDetect=off\n' >/etc/slurm/gres.conf
		sed -i 's/^\t*//' /etc/slurm/slurm.conf
		systemctl restart munge
		systemctl restart slurmctld
		systemctl restart slurmd
		for i in $(seq 100); do [ "$(sinfo -h -o %T)" = idle ] && break; sleep 0.1; done
	END
	srun_works
}

srun_works() {
	[ "$(echo srun hostname | machine_as alice)" = node1 ] || {
		echo "vgpu: install: srun hostname does not say node1: $(echo 'sinfo -lN; journalctl -q -n 20 --no-pager -u slurmctld -u slurmd' | machine_run)" >&2
		return 1
	}
}

# sbatch_works: jobs without a share are taken, at whatever step. slurmctld may be starting.
# shellcheck disable=SC2154 # out is the caller's
sbatch_works() {
	local i
	for i in $(seq 20); do
		[ "$i" = 1 ] || sleep 0.5
		! echo 'sbatch -Q -o /dev/null --wrap true' | machine_as alice >"$out/sbatch" 2>&1 || return 0
	done
	echo "vgpu: install: sbatch after $1: $(<"$out/sbatch")" >&2
	return 1
}

# driver_install: the simulated card stands in for NVIDIA's driver: libraries,
# device files and nvidia-smi, as far as INSTALL.md uses it.
driver_install() {
	local root=$machine/root
	install -D -t "$root/opt/simgpu/lib" "$top"/build/simgpu/lib/*.so.1
	install -D -t "$root/opt/simgpu/bin" "$top/build/simgpu/bin/simgpu"
	install -m 644 -t "$root/opt/simgpu" "$top/tests/simgpu/configs/one-card.toml"
	install -t "$root/usr/local/bin" "$top/build/tests/vgpu-worker"
	gcc -O1 -Wall -Werror -o "$root/usr/bin/nvidia-smi" "$top/tests/install/nvidia-smi.c" -ldl
	# gresd.service may write to devices and not to /opt.
	ln -s /dev/shm/simgpu "$root/opt/simgpu/state"
	echo /opt/simgpu/lib >"$root/etc/ld.so.conf.d/simgpu.conf"
	machine_run <<-'END'
		/opt/simgpu/bin/simgpu init --config /opt/simgpu/one-card.toml --state /dev/shm/simgpu >/dev/null
		chmod 666 /dev/shm/simgpu
		mknod -m 666 /dev/nvidia0 c 195 0
		ldconfig
	END
}

# blocks: the commands of INSTALL.md, one file in $out/blocks for each block, in
# order: 05.root, with the text that its output must have in 05.root.want.
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
			gsub(/ /, "-", how)
			file = sprintf("%s/%02d.%s", out, ++n, how)
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

# run BLOCK: in the machine, of $suite; fails where it does not do what it says.
run() {
	local block=$1 log=$1.$suite.log rc=0
	case $block in
	*.root) { echo "cd /packages"; cat "$block"; } | machine_run >"$log" 2>&1 || rc=$? ;;
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
	echo "vgpu: install: $suite: ${block##*/}: $rc:" >&2
	sed 's/^/  /' "$block" >&2
	tail -n 20 "$log" >&2
	return 1
}
