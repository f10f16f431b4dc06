// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	proc "github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/timeout"
)

// facts are what the kernel says of a process; they do not change while it
// lives, but for its name.
type facts struct {
	Process
	parent uint32
	// claimed: only its own environment names the job, so that its user must be
	// the job's.
	claimed bool
}

type identity struct {
	pid   uint32
	start uint64
}

// table reads /proc. It is for one goroutine.
type table struct {
	root      string   // "/proc", another place in tests
	libraries [][]byte // what memory maps call libvgpu
	self      uint32

	stuck timeout.Processes // reads of files in /proc
	files timeout.Processes // questions about open files: blocked reads must not hide a card's file

	known map[identity]facts
	next  map[identity]facts // what of known was asked for since the last turn
	// folders are cgroups of jobs whose number the name does not tell.
	folders map[string]uint32
	// lines are the ancestors that this turn went through, by the first of them:
	// processes that are nobody's have them in common, mostly.
	lines map[uint32]line
}

// mostFolders is from where on only those of jobs that are seen are kept: more than a node has jobs.
const mostFolders = 4096

// line is where the parents of a process lead.
type line struct {
	job uint32
	own bool // to gresd itself
}

func newTable(root string, self int) *table {
	return &table{
		root: root, self: uint32(self), libraries: namesOf(""), known: map[identity]facts{}, next: map[identity]facts{},
		folders: map[string]uint32{}, lines: map[uint32]line{},
	}
}

// turn forgets the processes that nobody asked for since the last turn.
func (t *table) turn() {
	t.known, t.next = t.next, map[identity]facts{}
	clear(t.lines)
	busy, jobs := false, map[uint32]bool{}
	for _, f := range t.known {
		busy = busy || f.Job != 0 || f.Exempt
		jobs[f.Job] = true
	}
	if !busy {
		t.folders = map[string]uint32{}
	}
	// A job that is not seen any more may come back; not for ever, where there is always another.
	if len(t.folders) > mostFolders {
		maps.DeleteFunc(t.folders, func(_ string, job uint32) bool { return !jobs[job] })
	}
}

func (t *table) dir(pid uint32) proc.Dir {
	return proc.Dir(filepath.Join(t.root, strconv.FormatUint(uint64(pid), 10)))
}

// look reads all of a process; false when it has ended, or is not at all the one
// that the driver means: in a container the driver may count by other numbers.
func (t *table) look(pid uint32) (facts, bool) {
	f, ok := t.stat(pid)
	if !ok {
		return facts{}, false
	}
	id := identity{pid, f.Start}
	old, seen := t.next[id]
	if !seen {
		old, seen = t.known[id]
	}
	if seen && (old.Job != 0 || old.Exempt) {
		t.next[id] = old
		return old, true
	}
	if f.UID, ok = t.dir(pid).UID(); !ok {
		return facts{}, false
	}
	if seen { // who is nobody's may become a job's; the rest stays
		f.Inside = old.Inside
	} else {
		if !t.usesCards(pid) {
			return facts{}, false
		}
		f.Inside = t.namespace(pid) != t.namespace(t.self)
		f.Exempt = pid == t.self || t.isMPS(pid)
	}
	t.findJob(&f)
	// The number may have gone to another process in between.
	if again, ok := t.stat(pid); !ok || again.Start != f.Start {
		return facts{}, false
	}
	t.next[id] = f
	return f, true
}

// stat reads name, parent and start time. A zombie has ended.
func (t *table) stat(pid uint32) (facts, bool) {
	stat, ok := t.dir(pid).Stat()
	if !ok || stat.Ended {
		return facts{}, false
	}
	// Its user chose the name: only plain letters get into logs and messages.
	name := strings.Map(func(r rune) rune {
		if r <= ' ' || r >= 0x7f {
			return '?'
		}
		return r
	}, stat.Name)
	return facts{Process: Process{PID: pid, Start: stat.Start, Name: name}, parent: uint32(stat.Parent)}, true
}

func (t *table) namespace(pid uint32) string { return t.dir(pid).Link("ns/pid") }

// isMPS says whether a process is NVIDIA's MPS server or its control daemon. A
// name alone would be an easy disguise: the program must be root's. In a user
// namespace of its own, whose mounts it makes itself, every program can have
// every name.
func (t *table) isMPS(pid uint32) bool {
	if t.dir(t.self).Link("ns/user") != t.dir(pid).Link("ns/user") {
		return false
	}
	if !strings.HasPrefix(filepath.Base(t.dir(pid).Link("exe")), "nvidia-cuda-mps-") {
		return false
	}
	uid, _ := t.dir(pid).UID()
	st, ok := t.statOf(uid, pid, t.dir(pid).File("exe"))
	return ok && st.Uid == 0 && st.Mode&0o022 == 0
}

// read reads a file of a process, which can block the read ([timeout.RunForProcess]). answered is
// false if the process does. The text is nil if the kernel returns an error.
func (t *table) read(pid uint32, file string) (text []byte, answered bool) {
	uid, _ := t.dir(pid).UID()
	return timeout.RunForProcess(&t.stuck, uid, pid, func() []byte {
		text, err := os.ReadFile(t.dir(pid).File(file))
		if err != nil {
			return nil
		}
		return text
	})
}

// statOf follows a link of the process to a file that is its user's. What the file system has in
// memory will do: most then ask nobody.
func (t *table) statOf(uid, pid uint32, path string) (st unix.Statx_t, ok bool) {
	found, ok := timeout.RunForProcess(&t.files, uid, pid, func() *unix.Statx_t {
		var st unix.Statx_t
		if unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS, &st) != nil {
			return nil
		}
		return &st
	})
	if !ok || found == nil {
		return st, false
	}
	return *found, true
}

// usesCards reports whether a process can use a card: each use of the driver needs an open device
// file. The memory map comes last, because a process that blocks its map blocks all later questions.
func (t *table) usesCards(pid uint32) bool {
	dir := t.dir(pid)
	names := dir.Open(-1)
	for _, name := range names {
		if strings.HasPrefix(dir.Link("fd/"+name), "/dev/nvidia") {
			return true
		}
	}
	uid, _ := dir.UID()
	if slices.ContainsFunc(names, func(name string) bool { return t.isCard(uid, pid, dir.File("fd/"+name)) }) {
		return true
	}
	maps, _ := t.read(pid, "maps")
	return bytes.Contains(maps, []byte("/libcuda.so"))
}

// library reports whether libvgpu is in the memory of a process. If too many processes of its user
// block, all others count as blocked, too.
func (t *table) library(pid uint32) Library {
	maps, answered := t.read(pid, "maps")
	switch {
	case !answered:
		return Blocked
	case maps == nil:
		return Unread
	case len(maps) == 0:
		return Ending
	case slices.ContainsFunc(t.libraries, func(name []byte) bool { return bytes.Contains(maps, name) }):
		return Loaded
	}
	return Absent
}

// namesOf is what memory maps may call the library: a site can give it any name, and a link leads
// to another. A release that processes began with may have had yet another one.
func namesOf(library string) [][]byte {
	names := [][]byte{[]byte("/libvgpu")}
	if library == "" {
		return names
	}
	names = append(names, []byte("/"+filepath.Base(library)))
	if to, err := filepath.EvalSymlinks(library); err == nil {
		names = append(names, []byte("/"+filepath.Base(to)))
	}
	return names
}

// nvidiaMajor is the number of the driver's character devices of cards.
const nvidiaMajor = 195

// isCard says whether a path leads to the device file of a card, by whatever name:
// in mounts of its own a process can give it another one.
func (t *table) isCard(uid, pid uint32, path string) bool {
	st, ok := t.statOf(uid, pid, path)
	return ok && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev_major == nvidiaMajor
}

// findJob finds the job by what its user cannot change, best first: the cgroup,
// then the slurmstepd that it descends from, or that is in the same cgroup. Where Slurm has no cgroups, a
// process whose parents have ended has only its environment to speak for it.
func (t *table) findJob(f *facts) {
	text, _ := os.ReadFile(t.dir(f.PID).File("cgroup"))
	folder, job := proc.CgroupOfJob(string(text))
	if job == 0 {
		job = t.folders[folder]
	}
	if job == 0 {
		var own bool
		if job, own = t.ancestors(f.PID, f.parent); own {
			f.Exempt = true
		}
		if job == 0 && folder != "" && !own {
			job = proc.JobOfFolder(t.root, folder)
		}
		if job != 0 && folder != "" {
			t.folders[folder] = job
		}
	}
	if job == 0 && folder == "" {
		job = t.environment(f.PID)
		f.claimed = job != 0
	}
	f.Job = job
}

// ancestors follows the parents up to a slurmstepd; own is true for a child of
// gresd itself.
func (t *table) ancestors(pid, parent uint32) (job uint32, own bool) {
	if parent == pid {
		return 0, false
	}
	l, known := t.lines[parent]
	if !known {
		l.job, l.own = t.follow(parent)
		t.lines[parent] = l
	}
	return l.job, l.own
}

func (t *table) follow(parent uint32) (job uint32, own bool) {
	for range 1000 { // a process that ends meanwhile could make a circle
		if parent == t.self {
			return 0, true
		}
		if parent <= 1 {
			return 0, false
		}
		if proc.IsStepd(t.dir(parent)) {
			title, _ := t.read(parent, "cmdline")
			if job := proc.JobOfStepd(strings.TrimRight(string(title), "\x00")); job != 0 {
				return job, false
			}
		}
		up, ok := t.stat(parent)
		if !ok || up.parent == parent {
			return 0, false
		}
		parent = up.parent
	}
	return 0, false
}

func (t *table) environment(pid uint32) uint32 {
	text, ok := t.read(pid, "environ")
	if !ok {
		return 0
	}
	for word := range bytes.SplitSeq(text, []byte{0}) {
		if number, is := bytes.CutPrefix(word, []byte("SLURM_JOB_ID=")); is {
			if n, err := strconv.ParseUint(string(number), 10, 32); err == nil {
				return uint32(n)
			}
		}
	}
	return 0
}
