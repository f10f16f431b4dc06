// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

var fileAttacks = []attack{
	{"read, list, watch or map another job's grant, cache and messages", rights, "", func(s *siege) tally {
		return s.onFiles("look", s.ofVictim())
	}},
	{"write, replace, link, rename, remove or re-own them, or put files beside them", rights, "", func(s *siege) tally {
		return s.onFiles("change", s.ofVictim())
	}},
	{"read gresd's state, another user's MPS folder or the list of jobs", rights, "", func(s *siege) tally {
		return s.onFiles("look", []string{state, state + "/ledger.json", state + "/ledger.json.lock", state + "/cards.json", runDir + "/jobs", runDir + "/mps"})
	}},
	{"change any other path of gresd: its socket, the preload list, mount points, configuration", rights, "", func(s *siege) tally {
		own := []string{"grant", "messages"}
		for i, name := range own {
			own[i] = filepath.Join(cluster.JobDir(s.own), name)
		}
		return s.onFiles("change", append(own, runDir, runDir+"/jobs", runDir+"/preload", runDir+"/self", runDir+"/self/grant", socket, runDir+"/mps",
			cluster.JobDir(s.own), state, state+"/ledger.json", "/etc/ld.so.preload", "/etc/vgpu/vgpu.toml", "/etc/slurm/plugstack.conf",
			cluster.Dir+"/lib/libvgpu.so", cluster.Dir+"/bin/gresd"))
	}},
	{"change one's own grant through `mmap`, `/proc/self/mem`, `map_files` or a second mount", namespace, "", func(s *siege) tally {
		return s.attackInside("own-grant")
	}},
}

func init() {
	agents["look"] = func(paths []string) tally { return onPaths(lookers, paths) }
	agents["change"] = func(paths []string) tally { return onPaths(changers, paths) }
	agents["own-grant"] = ownGrant
}

// ofVictim are all files of the attacked job, and one that is not there yet.
func (s *siege) ofVictim() []string {
	dir := cluster.JobDir(s.victim)
	return []string{dir, dir + "/grant", dir + "/cache", dir + "/messages", dir + "/environment", dir + "/refused"}
}

// onFiles tries it as a user without a job, and in a job.
func (s *siege) onFiles(agent string, paths []string) tally {
	got := s.attack(carol, append([]string{agent}, paths...)...)
	got.add(s.attackInside(append([]string{agent}, paths...)...))
	return got
}

// operation is one thing to do with a path. It returns nil where it was possible.
type operation struct {
	name string
	do   func(path string) error
}

func onPaths(operations []operation, paths []string) tally {
	var t tally
	for _, path := range paths {
		for _, op := range operations {
			t.denied(op.do(path), "uid %d: %s %s", os.Getuid(), op.name, path)
		}
	}
	return t
}

func opened(flags int) func(string) error {
	return func(path string) error {
		fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
}

// again opens a path for nothing, and then its descriptor for something.
func again(flags int) func(string) error {
	return func(path string) error {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return opened(flags)(fmt.Sprintf("/proc/self/fd/%d", fd))
	}
}

var lookers = []operation{
	{"open", opened(unix.O_RDONLY)},
	{"open again through /proc/self/fd", again(unix.O_RDONLY)},
	{"list", func(path string) error { _, err := os.ReadDir(path); return err }},
	{"watch", func(path string) error {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		_, err = unix.InotifyAddWatch(fd, path, unix.IN_ALL_EVENTS)
		return err
	}},
	{"map", func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
		return err
	}},
	{"open by its handle", func(path string) error {
		handle, mount, err := unix.NameToHandleAt(unix.AT_FDCWD, path, 0)
		if err != nil {
			return err
		}
		_ = mount
		fd, err := unix.OpenByHandleAt(unix.AT_FDCWD, handle, unix.O_RDONLY)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}},
	{"take attributes of", func(path string) error {
		if n, err := unix.Getxattr(path, "system.posix_acl_access", make([]byte, 256)); err != nil || n == 0 {
			return errors.Join(err, io.EOF)
		}
		if _, err := os.ReadDir(path); err == nil {
			return nil
		}
		return unix.EACCES // that a folder has a list of rights is no secret
	}},
}

// mine makes something of the attacker's to put into another's place.
func mine(make func(path string) error) (string, error) {
	path := filepath.Join(os.Getenv("HOME"), "mine")
	_ = os.RemoveAll(path)
	return path, make(path)
}

func plain(path string) error { return os.WriteFile(path, []byte("mine"), 0o666) }

var changers = []operation{
	{"open to write", opened(unix.O_WRONLY)},
	{"open to read and write", opened(unix.O_RDWR)},
	{"cut", func(path string) error { return os.Truncate(path, 0) }},
	{"open again to write", again(unix.O_RDWR)},
	{"make", opened(unix.O_CREAT | unix.O_EXCL | unix.O_WRONLY)},
	{"make a file below", func(path string) error { return opened(unix.O_CREAT | unix.O_WRONLY)(path + "/hostile") }},
	{"make a nameless file in", opened(unix.O_TMPFILE | unix.O_RDWR)},
	{"make a folder below", func(path string) error { return os.Mkdir(path+"/hostile", 0o777) }},
	{"make a FIFO below", func(path string) error { return unix.Mkfifo(path+"/hostile", 0o666) }},
	{"make a link below", func(path string) error { return os.Symlink("/etc/shadow", path+"/hostile") }},
	{"remove", unix.Unlink},
	{"remove the folder", unix.Rmdir},
	{"rename", func(path string) error { return os.Rename(path, filepath.Join(os.Getenv("HOME"), "taken")) }},
	{"rename a file onto", func(path string) error {
		own, err := mine(plain)
		return errors.Join(err, os.Rename(own, path))
	}},
	{"rename a folder onto", func(path string) error {
		own, err := mine(func(p string) error { return os.Mkdir(p, 0o777) })
		return errors.Join(err, unix.Rename(own, path))
	}},
	{"exchange a file with", func(path string) error {
		own, err := mine(plain)
		return errors.Join(err, unix.Renameat2(unix.AT_FDCWD, own, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE))
	}},
	{"hard-link", func(path string) error {
		own, _ := mine(func(string) error { return nil })
		return os.Link(path, own)
	}},
	{"hard-link a file into the place of", func(path string) error {
		own, err := mine(plain)
		return errors.Join(err, os.Link(own, path))
	}},
	{"symlink into the place of", func(path string) error { return os.Symlink("/etc/shadow", path) }},
	{"chmod", func(path string) error { return os.Chmod(path, 0o777) }},
	{"chown", func(path string) error { return os.Lchown(path, os.Getuid(), os.Getgid()) }},
	{"set times of", func(path string) error { return unix.Utimes(path, make([]unix.Timeval, 2)) }},
	{"give rights to", func(path string) error { return unix.Setxattr(path, "system.posix_acl_access", []byte{2, 0, 0, 0}, 0) }},
	{"set attributes of", func(path string) error { return unix.Setxattr(path, "user.hostile", []byte("x"), 0) }},
	{"lease", func(path string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
		return err
	}},
	{"mount over", func(path string) error { return unix.Mount("/dev/null", path, "", unix.MS_BIND, "") }},
	{"unmount", func(path string) error { return unix.Unmount(path, unix.MNT_DETACH) }},
	{"listen at", func(path string) error {
		l, err := net.Listen("unix", path)
		if err == nil {
			l.Close()
		}
		return err
	}},
}

// ownGrant tries to write a grant that may be read and is mapped.
func ownGrant([]string) tally {
	var t tally
	for _, path := range []string{runDir + "/self/grant", cluster.JobDir(jobOfEnv()) + "/grant"} {
		f, err := os.Open(path)
		if err != nil {
			t.note(false, "open %s: %v", path, err)
			continue
		}
		defer f.Close()
		fd := int(f.Fd())
		_, err = unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		t.denied(err, "map %s to write", path)
		view, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.note(false, "map %s: %v", path, err)
			continue
		}
		t.denied(unix.Mprotect(view, unix.PROT_READ|unix.PROT_WRITE), "mprotect the mapping of %s", path)
		address := addressOf(view)
		memory, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
		if err == nil {
			_, err = memory.WriteAt([]byte{0}, int64(address))
		}
		t.denied(err, "write the mapping of %s through /proc/self/mem", path)
		_, err = unix.ProcessVMWritev(os.Getpid(), iovec([]byte{0}), []unix.RemoteIovec{{Base: address, Len: 1}}, 0)
		t.denied(err, "write the mapping of %s with process_vm_writev", path)
		t.denied(opened(unix.O_RDWR)(mappedFile(address)), "open the mapping of %s to write", path)
		t.denied(opened(unix.O_RDWR)(fmt.Sprintf("/proc/self/fd/%d", fd)), "open %s again to write", path)
		t.denied(unix.Ftruncate(fd, 0), "cut %s", path)
		t.denied(unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096), "punch a hole into %s", path)
		t.denied(unix.Madvise(view, unix.MADV_REMOVE), "punch a hole through the mapping of %s", path)
		t.denied(unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_BIND, ""), "remount %s", path)
		for _, op := range changers {
			t.denied(op.do(path), "%s %s", op.name, path)
		}
	}
	return t
}

// mappedFile is the link of /proc to what is mapped at an address.
func mappedFile(address uintptr) string {
	maps, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(maps)) {
		if strings.HasPrefix(line, fmt.Sprintf("%x-", address)) {
			span, _, _ := strings.Cut(line, " ")
			return "/proc/self/map_files/" + span
		}
	}
	return "/proc/self/map_files"
}
