// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/mps/fake"
)

var pathAttacks = []attack{
	{
		"`ptrace` of one's own MPS daemon, which is in no job's cgroup", nothing,
		"with `mps` in `[mps] engines`: other cards' device files; `kernel.yama.ptrace_scope=1` stops it", takeDaemon,
	},
	{"links, FIFOs, files and renames in the place of whatever gresd, Prolog and the plugin are about to make", rights, "", racePaths},
	{
		"fill `/run/vgpu` through one's own MPS folder", nothing,
		"with `mps` in `[mps] engines`: while it is full, jobs with a share are requeued; gresd empties a folder above 64 MiB within 10 s", fillMPS,
	},
	{"links, FIFOs and deep folders in one's own MPS folder while gresd removes it", rights, "", trapMPS},
	{
		"commands to the MPS daemon that the jobs of all users share, and files in its folder", rights,
		"with `concurrent` in `[mps] engines`: which commands NVIDIA's own takes from users was not tried on a card", commandServer,
	},
	{"a folder on the way to a path of gresd that somebody else than root can write", rights, "", ofRootAlone},
	{"paths of another's files in the environment of a set-user-id program that has the library, without a grant", library, "", borrowRights},
}

// made are the names below run_dir and state_dir that gresd, the Prolog, the SPANK
// plugin or vgpuctl make or remove. N is a job, U a user, CARD a card.
var made = []string{
	"gresd.sock", "metrics.sock", "preload", "preload.new", "ask-gresd", "loses-shards", "self", "self/grant", "self/cache", "state", "state/N", "state/N.new",
	"jobs", "jobs/N", "jobs/new-N", "jobs/new-N/grant", "jobs/new-N/.grant.new", "jobs/new-N/cache", "jobs/new-N/.cache.new", "jobs/new-N/refused",
	"jobs/new-N/environment", "jobs/new-N/messages", "jobs/N/messages", "jobs/N/grant", "jobs/N/cache", "jobs/N/refused", "jobs/N/environment",
	"mps", "mps/CARD", "mps/CARD/U", "mps/CARD/U.json", "mps/CARD/U.json.new", "mps/CARD/U.out", "mps/CARD/U/pipe", "mps/CARD/U/log", "mps/CARD/U.old.N",
	"mps/CARD/all", "mps/CARD/all.json", "mps/CARD/all.json.new", "mps/CARD/all.out", "mps/CARD/all/pipe", "mps/CARD/all/log",
	"mps/CARD/all/pipe/control", "mps/CARD/all/pipe/nvidia-cuda-mps-control.pid",
	"mps/CARD/all.old.N", "mps/CARD/all.old.N/control", "mps/CARD/all.old.N/nvidia-cuda-mps-control.pid",
	"ledger.json", "ledger.json.new", "ledger.json.lock", "ledger.journal-N", "waiting.json", "waiting.json.new",
	"cards.json", "cards.json.new", "context.json", "context.json.new", "nodes.json", "nodes.json.new", "cards", "cards.new",
	"survivors.json", "survivors.json.new",
	"slices.json", "slices.json.new", "slicetest",
	"slicetest/short", "slicetest/short/grant", "slicetest/short/.grant.new", "slicetest/short/cache", "slicetest/short/.cache.new",
	"slicetest/long", "slicetest/long/grant", "slicetest/long/.grant.new", "slicetest/long/cache", "slicetest/long/.cache.new",
	"past", "past/N.json", "past/N.json.new",
}

// users are those of them that a user owns: below, the user may do anything.
var users = []string{"jobs/N/cache", "mps/CARD/U/pipe", "mps/CARD/U/log", "mps/CARD/U.old.N"}

func init() {
	agents["race"] = func(args []string) tally {
		d, _ := time.ParseDuration(args[0])
		return race(d, args[1:])
	}
	agents["fill"] = func(args []string) tally { return fill(args[0]) }
	agents["trap"] = func(dirs []string) tally { return trap(dirs) }
}

var (
	cardName = regexp.MustCompile(`GPU-[0-9a-f-]{36}`)
	userName = regexp.MustCompile(`^mps/CARD/\d+`)
	lifted   = regexp.MustCompile(`(U|all)\.old\.\d+`)
	jobName  = regexp.MustCompile(`^(jobs/(?:new-)?|state/|past/|ledger\.journal-)\d+`)
)

// pattern is a path as it stands in made.
func pattern(path string) string {
	for _, dir := range []string{runDir + "/", state + "/"} {
		path = strings.TrimPrefix(path, dir)
	}
	path = cardName.ReplaceAllString(path, "CARD")
	path = userName.ReplaceAllString(path, "mps/CARD/U")
	path = lifted.ReplaceAllString(path, "${1}.old.N")
	return jobName.ReplaceAllString(path, "${1}N")
}

// recorder hears of every name that is made or removed below folders.
type recorder struct {
	fd   int
	file *os.File
	mu   sync.Mutex
	dirs map[int32]string
	seen map[string]int // by pattern
}

func record(dirs ...string) (*recorder, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	r := &recorder{fd: fd, file: os.NewFile(uintptr(fd), "inotify"), dirs: map[int32]string{}, seen: map[string]int{}}
	for _, dir := range dirs {
		r.watch(dir)
	}
	go r.run()
	return r, nil
}

// watch adds a folder and what is in it already.
func (r *recorder) watch(dir string) {
	if slices.Contains(users, pattern(dir)) {
		return
	}
	wd, err := unix.InotifyAddWatch(r.fd, dir, unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_MOVED_TO|unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW)
	if err != nil {
		return // no folder, or gone
	}
	r.dirs[int32(wd)] = dir
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		r.note(filepath.Join(dir, e.Name()))
	}
}

func (r *recorder) note(path string) {
	r.mu.Lock()
	r.seen[pattern(path)]++
	r.mu.Unlock()
	r.watch(path)
}

func (r *recorder) run() {
	buf := make([]byte, 64<<10)
	for {
		n, err := r.file.Read(buf)
		if err != nil {
			return
		}
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			event := (*unix.InotifyEvent)(unsafe.Pointer(&buf[at]))
			name := buf[at+unix.SizeofInotifyEvent : at+unix.SizeofInotifyEvent+int(event.Len)]
			at += unix.SizeofInotifyEvent + int(event.Len)
			if dir, known := r.dirs[event.Wd]; known && len(name) > 0 {
				r.note(filepath.Join(dir, string(bytes.TrimRight(name, "\x00"))))
			}
		}
	}
}

func (r *recorder) patterns() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Sorted(maps.Keys(r.seen))
}

// canary is a folder of root's that no removal or write may reach.
const canary = cluster.Dir + "/canary"

func (s *siege) makeCanary() {
	s.t.Helper()
	if err := os.MkdirAll(canary+"/below", 0o755); err != nil {
		s.t.Fatal(err)
	}
	for _, f := range []string{"file", "below/file"} {
		if err := os.WriteFile(filepath.Join(canary, f), []byte("precious"), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
}

// untouched counts the canary as one try.
func (s *siege) untouched(t *tally) {
	for _, f := range []string{"file", "below/file"} {
		path := filepath.Join(canary, f)
		text, err := os.ReadFile(path)
		var st unix.Stat_t
		statErr := unix.Lstat(path, &st)
		t.note(err == nil && statErr == nil && string(text) == "precious" && st.Mode&0o7777 == 0o644 && st.Uid == 0 && st.Nlink == 1,
			"%s: %q, %v, mode %o, owner %d, %d links", path, text, err, st.Mode, st.Uid, st.Nlink)
	}
}

// racePaths lets users fight for names while jobs come and go and gresd restarts.
func racePaths(s *siege) tally {
	how := "1500ms"
	if isLong() {
		how = "60s"
	}
	s.makeCanary()
	var names []string
	for _, name := range made {
		for job := s.own; job < s.own+200; job += 1 + 8*boolToInt(!strings.Contains(name, "N")) {
			path := strings.ReplaceAll(strings.ReplaceAll(name, "N", fmt.Sprint(job)), "U", "33")
			path = strings.ReplaceAll(path, "CARD", s.grant.Cards[0].UUID)
			if strings.Contains(name, ".json") && !strings.HasPrefix(name, "mps") {
				path = state + "/" + path
			} else {
				path = runDir + "/" + path
			}
			if !slices.Contains(names, path) {
				names = append(names, path)
			}
		}
	}
	var all []*pending
	for _, user := range []string{alice, carol} {
		all = append(all, s.start(user, append([]string{"race", how}, names...)...))
	}
	d, _ := time.ParseDuration(how)
	rounds := 0
	for end := time.Now().Add(d); time.Now().Before(end); rounds++ {
		job := s.submit(bob, "--gres=vgpu:5", "true")
		if rounds%2 == 0 {
			s.Gresd.Kill()
			if err := s.Gresd.Start(); err != nil {
				s.t.Fatal(err)
			}
		}
		s.finished(bob, job)
	}
	var got tally
	for _, p := range all {
		got.add(p.wait(s.t))
	}
	s.untouched(&got)
	got.Said = fmt.Sprintf("%d jobs and %d restarts of gresd meanwhile", rounds, (rounds+1)/2)
	return got
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// race puts things into places again and again.
func race(how time.Duration, paths []string) tally {
	var t tally
	own, _ := os.Getwd()
	_ = os.WriteFile("racer", []byte("mine"), 0o666)
	_ = os.Mkdir("racers", 0o777)
	for end := time.Now().Add(how); time.Now().Before(end); {
		for _, path := range paths {
			t.denied(os.Symlink(canary, path), "symlink %s", path)
			t.denied(os.Symlink(canary+"/file", path), "symlink to a file %s", path)
			t.denied(unix.Mkfifo(path, 0o666), "FIFO %s", path)
			t.denied(os.Link(own+"/racer", path), "hard link %s", path)
			t.denied(unix.Rename(own+"/racer", path), "rename onto %s", path)
			t.denied(unix.Renameat2(unix.AT_FDCWD, own+"/racers", unix.AT_FDCWD, path, unix.RENAME_EXCHANGE), "exchange with %s", path)
			t.denied(unix.Unlink(path), "remove %s", path)
			if time.Now().After(end) {
				break
			}
		}
	}
	return t
}

// mpsJob starts a job of alice's under MPS, on the card that nobody uses.
func (s *siege) mpsJob() (job int, folder string) {
	s.t.Helper()
	job = s.submit(alice, "--gres=vgpu:80 --vgpu-engine=mps", "sleep 60")
	var dirs []string
	s.eventually("the job's MPS folder is there", func() bool {
		dirs, _ = filepath.Glob(runDir + "/mps/*/33/pipe/control")
		return len(dirs) == 1
	})
	return job, filepath.Dir(filepath.Dir(dirs[0]))
}

// fillMPS takes the room of all jobs' grants for files of a user's own.
func fillMPS(s *siege) tally {
	job, base := s.mpsJob()
	got := s.attack(alice, "fill", base+"/log/filler")
	if err := s.Cancel(alice, job); err != nil {
		s.t.Error(err)
	}
	return got
}

// fill writes a file until there is no room, and takes it away at once.
func fill(path string) (t tally) {
	const bounded = 4 << 20
	f, err := os.Create(path)
	if err != nil {
		t.note(true, "")
		return t
	}
	defer os.Remove(path)
	defer f.Close()
	written, piece := 0, make([]byte, 1<<18)
	for err == nil && written < 64<<20 {
		var n int
		n, err = f.Write(piece)
		written += n
	}
	t.note(written <= bounded, "%d MiB were written, then: %v", written>>20, err)
	return t
}

// trapMPS fills a user's MPS folder with what must not be followed, then ends the job.
func trapMPS(s *siege) tally {
	s.makeCanary()
	job, base := s.mpsJob()
	trapper := s.start(alice, "trap", base+"/pipe", base+"/log")
	time.Sleep(300 * time.Millisecond)
	if err := s.Cancel(alice, job); err != nil {
		s.t.Error(err)
	}
	got := trapper.wait(s.t)
	got.Stopped = got.Tried // what it does in its own folders is its own affair
	s.untouched(&got)
	var gone error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, gone = os.Lstat(base); gone != nil {
			break
		}
	}
	got.note(gone != nil, "%s is still there", base)
	got.Said = fmt.Sprintf("%d tries", got.Tried)
	return got
}

// commandServer says to the daemon of the engine concurrent what only root may, as the user of a job of
// that engine, and touches what is in its folder.
func commandServer(s *siege) tally {
	job := s.submit(alice, "--gres=vgpu:80 --vgpu-engine=concurrent", "sleep 60") // on the card that nobody uses
	var dirs []string
	s.eventually("the daemon's folder is there", func() bool {
		dirs, _ = filepath.Glob(runDir + "/mps/*/all/pipe/control")
		return len(dirs) == 1
	})
	pipe := filepath.Dir(dirs[0])
	base := filepath.Dir(pipe)
	pid, err := os.ReadFile(pipe + "/nvidia-cuda-mps-control.pid")
	if err != nil {
		s.t.Fatal(err)
	}
	got := s.onFiles("change", []string{base, pipe, base + "/log", base + ".json", base + ".out", dirs[0], pipe + "/nvidia-cuda-mps-control.pid"})
	got.add(s.onFiles("look", []string{base + "/log", base + ".json", base + ".out"}))
	for _, command := range []string{
		"quit", "quit -t 0", "start_server -uid 33", "set_default_active_thread_percentage 1", "set_default_device_pinned_mem_limit 0 1G", "get_server_list",
	} {
		r := s.As(alice, "sh", "-c", `echo "$1" | CUDA_MPS_PIPE_DIRECTORY=`+pipe+" "+cluster.Dir+"/mps/"+fake.Control, "sh", command)
		got.note(strings.Contains(r.Out, "denied"), "%q: %s", command, r)
	}
	alive := unix.Kill(atoi(strings.TrimSpace(string(pid))), 0)
	got.note(alive == nil, "the daemon has ended: %v", alive)
	if err := s.Cancel(alice, job); err != nil {
		s.t.Error(err)
	}
	return got
}

func atoi(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// deepest is how deep a trap goes: each folder below another.
func deepest() int {
	if isLong() {
		return 100_000
	}
	return 2000
}

func trap(dirs []string) tally {
	var t tally
	for _, dir := range dirs {
		if os.Chdir(dir) != nil {
			continue
		}
		for range deepest() {
			if os.Mkdir("d", 0o700) != nil || os.Chdir("d") != nil {
				break
			}
		}
		_ = os.WriteFile("bottom", nil, 0o000)
		_ = os.Chdir(dir)
		_ = os.Mkdir("closed", 0o700)
		_ = os.WriteFile("closed/file", nil, 0o600)
		_ = os.Chmod("closed", 0)
		_ = unix.Mkfifo("fifo", 0o666)
		_ = os.WriteFile("\x1b[2J\xff", nil, 0o600)
	}
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		for _, dir := range dirs {
			name := filepath.Join(dir, "x")
			_ = os.Mkdir(name, 0o777)
			_ = os.Symlink(canary, filepath.Join(dir, "link"))
			_ = os.Symlink(canary+"/below", filepath.Join(name, "below"))
			_ = unix.Renameat2(unix.AT_FDCWD, name, unix.AT_FDCWD, filepath.Join(dir, "link"), unix.RENAME_EXCHANGE)
			if isLong() { // then gresd must end the daemon by force, which takes seconds
				_ = os.Remove(filepath.Join(dir, "control"))
				_ = os.Symlink(canary+"/file", filepath.Join(dir, "control"))
			}
			t.Tried++
		}
	}
	return t
}

// ofRootAlone compares what was made since the beginning with the list above, and
// looks who may write on the way to it.
func ofRootAlone(s *siege) tally {
	var t tally
	found := s.recorder.patterns()
	for _, p := range found {
		t.note(slices.Contains(made, p), "%s was made or removed: want a row in made", p)
	}
	t.Said = strings.Join(found, " ")
	t.note(len(found) > 15, "only %d names were seen: %q", len(found), found)
	for _, dir := range []string{runDir, state} {
		_ = filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if err != nil || slices.Contains(users, pattern(path)) {
				return filepath.SkipDir
			}
			for at := path; ; at = filepath.Dir(at) {
				var st unix.Stat_t
				err := unix.Lstat(at, &st)
				kind := st.Mode & unix.S_IFMT
				// To write to a socket is to ask who listens there.
				open := kind != unix.S_IFSOCK && kind != unix.S_IFLNK && st.Mode&0o022 != 0
				t.note(err != nil || st.Uid == 0 && !open, "%s: owner %d, mode %o", at, st.Uid, st.Mode)
				if at == "/" {
					return nil
				}
			}
		})
	}
	return t
}

// borrowRights names files of root's as the library's cache to a set-user-id program.
// The library must not make or stretch them; the limit of the environment holds.
func borrowRights(s *siege) tally {
	var t tally
	dir := s.t.TempDir()
	program, list, old := dir+"/worker", dir+"/preload", dir+"/old"
	data, err := os.ReadFile(cluster.Worker)
	if err == nil {
		err = errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), os.WriteFile(program, data, 0o755), os.Chmod(program, 0o755|os.ModeSetuid),
			os.WriteFile(list, []byte(cluster.Dir+"/lib/libvgpu.so\n"), 0o644), os.WriteFile(old, nil, 0o600))
	}
	if err != nil {
		s.t.Fatal(err)
	}
	for _, path := range []string{dir + "/new", old} {
		r := s.As("root", "unshare", "-m", "sh", "-c", fmt.Sprintf(`mount --bind %s /etc/ld.so.preload && exec setpriv --reuid=33 --regid=33 --clear-groups \
			env CUDA_DEVICE_MEMORY_LIMIT=1G CUDA_DEVICE_MEMORY_SHARED_CACHE=%s %s --report`, list, path, program))
		if !strings.Contains(r.Out, `1073741824`) {
			s.t.Errorf("the library and its limit are not at work: %s", r)
		}
		info, err := os.Stat(path)
		t.note(errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0, "%s: %v", path, info)
	}
	return t
}
