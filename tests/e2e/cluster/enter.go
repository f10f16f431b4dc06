// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// stageEnv tells a re-executed program which part of the way it is on.
const stageEnv = "VGPU_CLUSTER_STAGE"

// outsideEnv names the namespaces that it was started in.
const outsideEnv = "VGPU_CLUSTER_OUTSIDE"

// hostName is the node's name inside; it need not resolve anywhere else.
const hostName = "vgpu-node"

// Enter moves the program into a private machine: own mounts, processes,
// network and host name. It returns only inside. The first caller outside
// waits for the run within and exits with its status, so that a program calls
// Enter first and then goes on as if it were alone.
//
// Everything that a run starts or writes lives in these namespaces. They end
// with their first process, whatever ended it, so nothing can be left over:
// no daemon, no mount, no file under /run or /etc.
func Enter() error { return enter(unix.CLONE_NEWPID) }

// EnterForCards is Enter for real cards: processes have the host's numbers, by which a card's
// records of context switches name them. What is left over at the end is killed, unless the
// first process within is killed before.
func EnterForCards() error { return enter(0) }

func enter(pids uintptr) error {
	switch os.Getenv(stageEnv) {
	case "":
		return outside(pids)
	case "init":
		return first(pids == 0)
	}
	return nil
}

// inside says whether the first process within is this very program, as it is after Enter. It
// guards everything that would be wrong to do to a whole machine.
func inside() bool {
	self, err := os.Stat("/proc/self/exe")
	if err != nil {
		return false
	}
	one, err := os.Stat("/proc/1/exe")
	if err == nil && os.SameFile(one, self) {
		return true
	}
	parent, err := os.Stat(fmt.Sprintf("/proc/%d/exe", os.Getppid()))
	if err != nil || !os.SameFile(parent, self) || os.Getenv(stageEnv) == "" {
		return false
	}
	own, err := namespaces()
	return err == nil && os.Getenv(outsideEnv) != "" && os.Getenv(outsideEnv) != own
}

// namespaces names those of this process that Enter makes anew whatever the card.
func namespaces() (names string, err error) {
	for _, kind := range []string{"mnt", "net"} {
		name, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return "", err
		}
		names += name + " "
	}
	return names, nil
}

// outside starts the first process of the namespaces and takes its status.
func outside(pids uintptr) error {
	if os.Geteuid() != 0 {
		return errors.New("vgpu: cluster: need root to start a private Slurm (uid " +
			fmt.Sprint(os.Geteuid()) + "): run it as root, for example with sudo")
	}
	// The parent-death signal is tied to the thread, not to the process.
	runtime.LockOSThread()
	outer, err := namespaces()
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), stageEnv+"=init", outsideEnv+"="+outer)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | pids | unix.CLONE_NEWNET | unix.CLONE_NEWUTS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("enter private namespaces: %w", err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		os.Exit(0)
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		os.Exit(exit.ExitCode())
	}
	return fmt.Errorf("run in private namespaces: %w", err)
}

// first is the first process within: it makes the mounts, starts the program once more, and
// reaps every orphan until that program ends. Orphans are its children because it is process 1,
// or because it asks for them.
func first(asks bool) error {
	if asks {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("ask for orphans: %w", err)
		}
	}
	if err := private(!asks); err != nil {
		return err
	}
	if err := os.Setenv(stageEnv, "inside"); err != nil {
		return err
	}
	// A root shell from su has no /usr/sbin, where the daemons are.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/usr/bin:/sbin:/bin"); err != nil {
		return err
	}
	pid, err := syscall.ForkExec("/proc/self/exe", os.Args, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		return fmt.Errorf("start the program inside: %w", err)
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	go func() {
		for s := range signals {
			_ = syscall.Kill(pid, s.(syscall.Signal))
		}
	}()
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("wait for the program inside: %w", err)
		case got != pid:
			continue
		}
		if asks {
			killChildren()
		}
		if status.Signaled() {
			os.Exit(128 + int(status.Signal()))
		}
		os.Exit(status.ExitStatus())
	}
}

// killChildren ends all processes below this one. Those of one that has ended are its own.
func killChildren() {
	for {
		text, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
		if err != nil || len(text) == 0 {
			return
		}
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
				_, _ = syscall.Wait4(pid, nil, 0, nil)
			}
		}
	}
}

// private gives this mount namespace its own /proc, /run, /dev/shm and /etc.
func private(proc bool) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := enterRoot(); err != nil {
		return err
	}
	mounts := []struct{ fs, at, opts string }{
		{"proc", "/proc", ""},
		{"tmpfs", "/run", "mode=755"},
		{"tmpfs", "/dev/shm", "mode=1777"},
	}
	for _, m := range mounts {
		if m.fs == "proc" && !proc {
			continue
		}
		if err := unix.Mount(m.fs, m.at, m.fs, 0, m.opts); err != nil {
			return fmt.Errorf("mount private %s: %w", m.at, err)
		}
	}
	if err := privateEtc(); err != nil {
		return err
	}
	if err := unpackDebs(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(hostName)); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	return loopback()
}

// privateEtc puts a copy of /etc over /etc: Slurm, munge, gresd and the loader
// then read their files at the usual paths, and the host keeps its own.
func privateEtc() error {
	const etc = "/run/etc"
	if err := os.Mkdir(etc, 0o755); err != nil {
		return err
	}
	if err := command("cp", "-a", "/etc/.", etc); err != nil {
		return err
	}
	if err := unix.Mount(etc, "/etc", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount private /etc: %w", err)
	}
	for _, dir := range []string{"slurm", "vgpu", "munge"} {
		if err := os.RemoveAll(filepath.Join("/etc", dir)); err != nil {
			return err
		}
	}
	if err := os.RemoveAll("/etc/ld.so.preload"); err != nil {
		return err
	}
	hosts, err := os.OpenFile("/etc/hosts", os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer hosts.Close()
	_, err = fmt.Fprintf(hosts, "\n127.0.0.1 %s\n", hostName)
	return err
}

// loopback brings up lo, which a new network namespace has switched off. The
// second address is for getaddrinfo, which Slurm asks for addresses of
// families that the machine has, and 127.0.0.1 alone does not count as one.
func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket for lo: %w", err)
	}
	defer unix.Close(fd)
	up, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	up.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, up); err != nil {
		return fmt.Errorf("bring up lo: %w", err)
	}
	second, err := unix.NewIfreq("lo:1")
	if err != nil {
		return err
	}
	if err := second.SetInet4Addr([]byte{192, 0, 2, 1}); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFADDR, second); err != nil {
		return fmt.Errorf("give lo an address: %w", err)
	}
	return nil
}
