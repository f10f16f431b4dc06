// SPDX-License-Identifier: Apache-2.0

package hostile

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

var cacheAttacks = []attack{
	{"fill `/run` through one's own cache file: written, allocated or stretched beyond its size", rights, "what is written between two looks, some milliseconds", growCache},
	{"keep `/run/vgpu` full while others start jobs and programs", rights, "on `/run` itself, other services of the node may miss it for milliseconds: give `/run/vgpu` its own tmpfs", hogRunDir},
	{"every part of one's own cache file overwritten, against gresd and `vgpuctl`", rights, "its own figures are wrong", corruptCache},
	{"all places of the cache claimed for processes of others, of nobody and of other namespaces, anew all the time", rights, "its own figures are wrong", forgeSlots},
	{"open and close the cache file, or take locks and leases of it, without a pause", rights, "", disturbCache},
}

func init() {
	for name, do := range map[string]func(cache *os.File, args []string) tally{
		"grow":        func(f *os.File, args []string) tally { return grow(f, int64(number(args[0]))) },
		"hog":         func(f *os.File, args []string) tally { return hog(f, number(args[0])) },
		"corrupt":     func(f *os.File, args []string) tally { return corrupt(f, number(args[0])) },
		"forge-slots": func(f *os.File, args []string) tally { return forgedSlots(f, number(args[0]), args[1:]) },
		"disturb":     func(f *os.File, _ []string) tally { return disturb(f) },
	} {
		agents[name] = func(args []string) (t tally) {
			f, err := os.OpenFile(args[0], os.O_RDWR, 0)
			if err != nil {
				t.note(false, "%v", err)
				return t
			}
			defer f.Close()
			return do(f, args[1:])
		}
	}
}

func (s *siege) ownCache() string { return cluster.JobDir(s.own) + "/cache" }

func used(path string) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return -1
	}
	return int64(st.Blocks-st.Bfree) * st.Bsize
}

// growCache makes the file as large as it can be, again and again.
func growCache(s *siege) tally {
	before, most := used(runDir), int64(0)
	var got tally
	s.nuisance(func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			got = s.attack(alice, "grow", s.ownCache(), fmt.Sprint(12<<20))
		}()
		for {
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
				most = max(most, used(runDir)-before)
			}
		}
	})
	s.eventually("the file has its size again", func() bool {
		info, err := os.Stat(s.ownCache())
		return err == nil && info.Size() == libvgpu.CacheSize
	})
	left := used(runDir) - before
	got.note(left < 2*libvgpu.CacheSize, "%d MiB of /run stay taken", left>>20)
	text, _ := os.ReadFile(cluster.JobDir(s.own) + "/messages")
	got.note(strings.Contains(string(text), "vgpu: cache: "), "the job is not told: %q", text)
	got.Said = fmt.Sprintf("at most %d MiB of /run were taken", most>>20)
	return got
}

// grow stretches a file, and looks whether it stays so.
func grow(f *os.File, bytes int64) tally {
	var t tally
	shrunk := func() bool {
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if info, err := f.Stat(); err == nil && info.Size() <= libvgpu.CacheSize {
				return true
			}
		}
		return false
	}
	for _, way := range []struct {
		name string
		do   func() error
	}{
		{"one byte", func() error { _, err := f.WriteAt([]byte{1}, libvgpu.CacheSize); return err }},
		{"written", func() error {
			piece := make([]byte, 1<<20)
			for at := int64(libvgpu.CacheSize); at < bytes; at += int64(len(piece)) {
				if _, err := f.WriteAt(piece, at); err != nil {
					return err
				}
			}
			return nil
		}},
		{"allocated", func() error { return unix.Fallocate(int(f.Fd()), 0, 0, bytes) }},
		{"stretched", func() error { return f.Truncate(1 << 50) }},
		{"a page at its far end", func() error { _, err := f.WriteAt([]byte{1}, 1<<40); return err }},
	} {
		if err := way.do(); err != nil {
			t.note(true, "")
			continue
		}
		t.note(shrunk(), "%s: it stays", way.name)
	}
	return t
}

// hogRunDir starts jobs of others while one user takes all of the filesystem.
func hogRunDir(s *siege) tally {
	milliseconds := 1500
	if isLong() {
		milliseconds = 60000
	}
	var got tally
	hogs := s.start(alice, "hog", s.ownCache(), fmt.Sprint(milliseconds))
	for end := time.Now().Add(time.Duration(milliseconds) * time.Millisecond); time.Now().Before(end); {
		s.honestJob()
		got.note(true, "")
	}
	got.Said = fmt.Sprintf("%d honest jobs; ", got.Tried)
	got.add(hogs.wait(s.t))
	return got
}

// hog takes all room that there is, in one call, again and again.
func hog(f *os.File, milliseconds int) tally {
	var t tally
	full, tries := atomic.Int64{}, atomic.Int64{}
	var all sync.WaitGroup
	end := time.Now().Add(time.Duration(milliseconds) * time.Millisecond)
	for range 3 {
		all.Go(func() {
			for at := int64(libvgpu.CacheSize); time.Now().Before(end); tries.Add(1) {
				var st unix.Statfs_t
				if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
					return
				}
				err := unix.Fallocate(int(f.Fd()), 0, at, max(4096, int64(st.Bavail)*st.Bsize))
				if errors.Is(err, unix.ENOSPC) {
					full.Add(1)
				}
			}
		})
	}
	all.Wait()
	t.Tried, t.Stopped = int(tries.Load()), int(tries.Load())
	t.Said = fmt.Sprintf("full %d times", full.Load())
	return t
}

// corruptCache compares nothing: gresd and vgpuctl must live, and end in time.
func corruptCache(s *siege) tally {
	rounds := 60
	if isLong() {
		rounds = 5000
	}
	var got tally
	s.nuisance(func() { got = s.attack(alice, "corrupt", s.ownCache(), fmt.Sprint(rounds)) })
	for _, args := range [][]string{{"inspect", s.ownCache()}, {"inspect", "--json", s.ownCache()}, {"jobs"}, {"ps"}, {"status"}, {"top", "--once"}} {
		began := time.Now()
		r := s.As("root", append([]string{"vgpuctl"}, args...)...)
		bad := strings.Contains(r.Err, "panic") || strings.Contains(r.Err, "goroutine ") || r.Code < 0 || r.Code > 2 || control(r.Out+r.Err)
		got.note(!bad && time.Since(began) < 5*time.Second, "vgpuctl %v: %s", args, r)
	}
	fifo := filepath.Join(s.Home(alice), "fifo")
	_ = s.As(alice, "mkfifo", fifo)
	for _, path := range []string{fifo, "/dev/zero", s.Home(alice), "/proc/self/mem"} {
		r := s.As("root", "timeout", "5", cluster.Dir+"/bin/vgpuctl", "inspect", path)
		got.note(r.Code == 1 || r.Code == 2, "vgpuctl inspect %s: %s", path, r)
	}
	return got
}

// control says whether a text has characters that a terminal obeys.
func control(text string) bool {
	return strings.ContainsFunc(text, func(r rune) bool {
		return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069
	})
}

// corrupt writes nonsense over each part of a cache, with all of it between.
func corrupt(f *os.File, rounds int) tally {
	var t tally
	good := make([]byte, libvgpu.CacheSize)
	if _, err := f.ReadAt(good, 0); err != nil {
		t.note(false, "%v", err)
		return t
	}
	random := rand.New(rand.NewPCG(7, 7))
	const header = 2 << 20
	for i := range rounds {
		n := 1 << random.IntN(16)
		at := header + random.Int64N(8<<10)
		if i%3 == 0 {
			at = random.Int64N(libvgpu.CacheSize - int64(n))
		}
		nonsense := make([]byte, n)
		for k := range nonsense {
			nonsense[k] = byte(random.Uint32() >> (8 * (i % 4)))
		}
		_, err := f.WriteAt(nonsense[:min(n, int(libvgpu.CacheSize-at))], at)
		if i%10 == 9 {
			_ = f.Truncate(random.Int64N(libvgpu.CacheSize))
			time.Sleep(5 * time.Millisecond)
			_ = f.Truncate(libvgpu.CacheSize)
		}
		time.Sleep(time.Millisecond) // gresd looks every few
		t.note(err == nil, "%v", err)
		_, _ = f.WriteAt(good, 0)
	}
	return t
}

func forgeSlots(s *siege) tally {
	var got tally
	pids := []string{"1", fmt.Sprint(s.gresd), fmt.Sprint(s.victimPID), fmt.Sprint(s.Slurmd.PID())}
	began, cpu := time.Now(), cpuTime(s.gresd)
	worst := s.nuisance(func() {
		got = s.attack(alice, append([]string{"forge-slots", s.ownCache(), "1500"}, pids...)...)
	})
	load := float64(cpuTime(s.gresd)-cpu) / float64(time.Since(began))
	got.note(load < 0.5, "gresd took %.0f %% of a processor", 100*load)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	rep, err := (&wire.Client{Socket: socket}).Do(ctx, wire.Request{Op: wire.OpJobs, Processes: true})
	got.note(err == nil && len(rep.Jobs) >= 2, "jobs: %+v, %v", rep, err)
	got.Said = fmt.Sprintf("gresd took %.0f %% of a processor, root waited %s at most", 100*load, worst.Round(time.Millisecond))
	return got
}

// cpuTime is what a process has computed.
func cpuTime(pid int) time.Duration {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	return time.Duration(number(fields[11])+number(fields[12])) * 10 * time.Millisecond
}

// forgedSlots claims every place, again and again with other owners.
func forgedSlots(f *os.File, milliseconds int, pids []string) tally {
	var t tally
	const header, slots, slot = 2 << 20, 2<<20 + 3072, (libvgpu.CacheSize - (2<<20 + 3072)) / libvgpu.MaxSlots
	good := make([]byte, libvgpu.CacheSize)
	if _, err := f.ReadAt(good, 0); err != nil {
		t.note(false, "%v", err)
		return t
	}
	all := make([]byte, slot*libvgpu.MaxSlots)
	le := binary.LittleEndian
	for round, end := 0, time.Now().Add(time.Duration(milliseconds)*time.Millisecond); time.Now().Before(end); round++ {
		_, _ = f.WriteAt(le.AppendUint32(nil, 1<<32-1), header+32) // high_slot
		for i := range libvgpu.MaxSlots {
			one := all[i*slot:]
			pid := uint64(number(pids[i%len(pids)]))
			if i%4 == 3 {
				pid = uint64(round*libvgpu.MaxSlots+i) % (1 << 22)
			}
			le.PutUint64(one, uint64(round%1024)<<54|pid<<32|uint64(round*7919+i))
			le.PutUint32(one[16:], uint32(pid))
			le.PutUint64(one[32:], uint64(round+i)) // another namespace
			le.PutUint64(one[64:], 1<<63)
		}
		_, err := f.WriteAt(all, slots)
		t.note(err == nil, "%v", err)
	}
	_, _ = f.WriteAt(good, 0)
	return t
}

func disturbCache(s *siege) tally {
	var got tally
	began, cpu := time.Now(), cpuTime(s.gresd)
	worst := s.nuisance(func() { got = s.attack(alice, "disturb", s.ownCache()) })
	load := float64(cpuTime(s.gresd)-cpu) / float64(time.Since(began))
	got.note(load < 0.5, "gresd took %.0f %% of a processor", 100*load)
	got.Said = fmt.Sprintf("gresd took %.0f %% of a processor, root waited %s at most", 100*load, worst.Round(time.Millisecond))
	return got
}

func disturb(f *os.File) tally {
	var t tally
	_ = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	_ = unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); {
		g, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
		if err == nil {
			_, _ = g.WriteAt([]byte{0}, 0)
			g.Close()
		}
		t.note(err == nil, "%v", err)
	}
	g, err := os.OpenFile(f.Name(), os.O_RDONLY, 0)
	if err == nil {
		_, _ = unix.FcntlInt(g.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
		g.Close()
	}
	return t
}

// lies are ways to hide what a process of the job holds already.
var lies = []struct{ name, script string }{
	{"cleared", `dd if=/dev/zero of=$cache bs=64k count=64 conv=notrunc`},
	{"slots cleared", `dd if=/dev/zero of=$cache bs=1024 seek=2051 count=4096 conv=notrunc`},
	{"no magic", `dd if=/dev/zero of=$cache bs=8 seek=262144 count=1 conv=notrunc`},
	{"stretched", `dd if=/dev/zero of=$cache bs=64k count=200 conv=notrunc`},
	// With three, nothing is left of runDir when the audit has something to say.
	{"random", random},
	{"random, second", random},
	{"random, third", random},
}

const random = `dd if=/dev/urandom of=$cache bs=64k skip=32 seek=32 count=60 conv=notrunc`

// lie lets jobs take 7 GiB of their 8, hide them, all at once, and take more.
func lie(s *siege) tally {
	var t tally
	jobs, now := map[int]string{}, filepath.Join(s.Home(alice), "lie.now")
	for _, l := range lies {
		jobs[s.submit(alice, "--gres=vgpu:10 --vgpu-mem=8G", fmt.Sprintf(`cache=/run/vgpu/self/cache; mkdir -p lie.$SLURM_JOB_ID; cd lie.$SLURM_JOB_ID
			%s --alloc 7G --hold 60 >first & first=$!; until [ -s first ]; do sleep 0.05; done
			until [ -e %s ]; do sleep 0.05; done
			%s; vgpu-escape dlsym 60 & echo hidden; wait $first; echo nothing is hidden; wait`, cluster.Worker, now, l.script))] = l.name
	}
	for job := range jobs {
		s.eventually(fmt.Sprintf("job %d has taken memory", job), func() bool {
			text, _ := os.ReadFile(filepath.Join(s.Home(alice), fmt.Sprintf("lie.%d/first", job)))
			return len(text) > 0
		})
	}
	if err := os.WriteFile(now, nil, 0o644); err != nil {
		s.t.Fatal(err)
	}
	told := func(job int) bool {
		text, _ := os.ReadFile(cluster.JobDir(job) + "/messages")
		return strings.Contains(string(text), "vgpu: audit: ") && strings.Contains(string(text), "its limit is") || held(s.Output(alice, job))
	}
	for end := time.Now().Add(12 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		all := true
		for job := range jobs {
			all = all && told(job)
		}
		if all {
			break
		}
	}
	for job, name := range jobs {
		text, _ := os.ReadFile(cluster.JobDir(job) + "/messages")
		t.note(told(job), "%s: the audit has not told job %d: %q; output %s", name, job, text, s.Output(alice, job))
	}
	for job := range jobs {
		_ = s.As(alice, "scancel", fmt.Sprint(job))
	}
	for job := range jobs {
		if _, err := s.Wait(job, 30*time.Second); err != nil {
			s.t.Error(err)
		}
	}
	_ = os.Remove(now)
	return t
}

// held says of a lying job's output that it did not get more than its limit: there was no room
// in runDir for its lie, or none for what the process that it hid then read of its cache, which
// ended that one.
func held(output string) bool {
	if strings.Contains(output, "\nnothing is hidden\n") {
		return true
	}
	for _, line := range strings.Split(output, "\n") {
		var got struct{ Granted *uint64 }
		if json.Unmarshal([]byte(line), &got) == nil && strings.HasPrefix(line, `{"cmd":"fill"`) {
			return got.Granted == nil || *got.Granted <= gib
		}
	}
	return false
}
