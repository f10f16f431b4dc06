// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/page"
)

// escape is one way to more memory than the job has. Its script runs as the
// job's user; $run is a program that takes memory until it is refused, and
// tells what it got.
type escape struct {
	name   string
	script string
	// What must come out at the levels of [levels].
	want [3]verdict
	// audited is how the audit must call it where it gets more than the limit;
	// "" where no level lets it.
	audited string
}

type verdict string

const (
	held    verdict = "held"    // it ran and got no more than its limit
	stopped verdict = "stopped" // it could not be done
	escaped verdict = "escapes" // it got more than its limit
)

// levels of enforcement: what plugstack.conf says for each.
var levels = []struct{ name, plugstack string }{
	{"level 1", ""},
	{"level 2", "optional " + cluster.Dir + "/lib/vgpu.so\n"},
	{"level 2 + seccomp", "optional " + cluster.Dir + "/lib/vgpu.so seccomp=1\n"},
}

// The simulated driver is a file that any program may load, as the real one is.
const driver = cluster.Dir + "/simgpu/lib/libcuda.so.1"

// hide puts an empty file over what the job's mounts have put there, in user
// and mount namespaces of one's own.
const hide = `unshare --user --map-root-user --mount sh -c "
	umount /etc/ld.so.preload /run/vgpu/self/grant 2>/dev/null
	mount --bind /dev/null /etc/ld.so.preload; mount --bind /dev/null /run/vgpu/self/grant
	unset LD_PRELOAD VGPU_GRANT; $run"`

// enlarge changes the limit in a copy of a grant, 8 GiB, to 80 GiB.
const enlarge = `at=$(LC_ALL=C grep -obUaP "\\x00{4}\\x02\\x00\\x00\\x00" forged | head -n 1 | cut -d: -f1)
		printf '\\024' | dd of=forged bs=1 seek=$((at + 4)) conv=notrunc 2>/dev/null`

// cache sets the path of the job's cache; its slots begin at 2051 KiB.
const cache = `cache=/run/vgpu/jobs/$SLURM_JOB_ID/cache
		[ -w $cache ] || cache=/run/vgpu/self/cache
		`

// A preload of the user's comes before the library at each level.
const wrapped = `LD_PRELOAD=` + cluster.Dir + `/bin/stress-wrap.so:$LD_PRELOAD $run`

// A library that calls the driver.
const linked = cluster.Dir + "/bin/stress-linked.so"

var escapes = []escape{
	{"an honest program", `$run`, [3]verdict{held, held, held}, ""},
	{"`unset LD_PRELOAD`", `unset LD_PRELOAD; $run`, [3]verdict{escaped, held, held}, "escaped"},
	{"`env -i`", `env -i $run`, [3]verdict{escaped, held, held}, "escaped"},
	{"`LD_PRELOAD` of another library", `LD_PRELOAD=libm.so.6 $run`, [3]verdict{escaped, held, held}, "escaped"},
	{"`srun --task-prolog` that prints `unset`", `printf '#!/bin/sh\necho unset LD_PRELOAD\n' >unset; chmod +x unset
		srun --overlap --task-prolog=$PWD/unset $run`, [3]verdict{escaped, held, held}, "escaped"},
	{"a rank of MPI, `srun --mpi=pmi2`, after `unset LD_PRELOAD`", `srun --overlap --overcommit --mpi=pmi2 -n 2 sh -c '
		unset LD_PRELOAD; [ $SLURM_PROCID = 0 ] || $run'`, [3]verdict{escaped, held, held}, "escaped"},
	{"the loader started by hand", `/lib64/ld-linux-*.so.2 $run`, [3]verdict{held, held, held}, ""},
	{"`VGPU_GRANT` names another file", `VGPU_GRANT=/dev/null VGPU_CACHE=/dev/null $run`, [3]verdict{stopped, held, held}, ""},
	{"`VGPU_GRANT` names a copy with a larger limit", `cat /run/vgpu/jobs/$SLURM_JOB_ID/grant >forged; chmod u+w forged
		` + enlarge + `
		` + cache + `cp $cache forged.cache; VGPU_GRANT=$PWD/forged VGPU_CACHE=$PWD/forged.cache $run`, [3]verdict{escaped, held, held}, "escaped"},
	{"`CUDA_DEVICE_MEMORY_LIMIT=80G`", `CUDA_DEVICE_MEMORY_LIMIT=80G CUDA_DEVICE_MEMORY_LIMIT_0=80G $run`, [3]verdict{held, held, held}, ""},
	{"`umount`, `rm` and `>` on grant and preload list", `for f in /run/vgpu/self/grant /run/vgpu/jobs/$SLURM_JOB_ID/grant /etc/ld.so.preload; do
		umount $f; rm -f $f; true >$f; mv $f $f.old; mount --bind /dev/null $f; done 2>/dev/null; $run`, [3]verdict{held, held, held}, ""},
	{"a set-user-id program of another user", cluster.Dir + `/bin/vgpu-escape-suid dlsym $hold`, [3]verdict{escaped, stopped, stopped}, "escaped"},
	{"`dlopen` of libcuda by its path", `$escape path:` + driver + ` $hold`, [3]verdict{held, held, held}, ""},
	{"a copy of libcuda, opened after libcuda", `cp ` + driver + ` mine.so; $escape copy:$PWD/mine.so $hold`, [3]verdict{held, held, held}, ""},
	{"a preload that wraps `dlsym`, and finds the next one by its version 2.34", `WRAP_BY=GLIBC_2.34 ` + wrapped, [3]verdict{held, held, held}, ""},
	{"the same by its version 2.2.5", `WRAP_BY=GLIBC_2.2.5 ` + wrapped, [3]verdict{held, held, held}, ""},
	{"the same in the C library itself, by `dlvsym`", `WRAP_BY=libc ` + wrapped, [3]verdict{held, held, held}, ""},
	{"a library that is linked to libcuda, opened with `RTLD_DEEPBIND`", `$escape deepbind:` + linked + ` $hold`, [3]verdict{held, held, held}, ""},
	{"the same with `dlmopen`", `$escape dlmopen:` + linked + ` $hold`, [3]verdict{held, held, held}, ""},
	{"libcuda's symbols read by hand, without `dlsym`", `$escape elf $hold`, [3]verdict{escaped, escaped, escaped}, "escaped"},
	{"no descriptor left at the first call", `$escape descriptors $hold`, [3]verdict{stopped, stopped, stopped}, ""},
	{"no descriptor left at the limit", `$escape limit $hold`, [3]verdict{held, held, held}, ""},
	{"the job's cache unreadable, or its head changed", cache + `chmod 000 $cache; $run; chmod 600 $cache
		printf x | dd of=$cache bs=1 seek=2097160 conv=notrunc 2>/dev/null; $run
		printf '\002' | dd of=$cache bs=1 seek=2097160 conv=notrunc 2>/dev/null`, [3]verdict{stopped, stopped, stopped}, ""},
	{"`prctl`: a seccomp filter that hides the grant from the library", `$escape filter $hold`, [3]verdict{escaped, escaped, escaped}, "escaped"},
	{"`ptrace` by a process of the job, which hides the grant from the other", `$escape ptrace $hold`, [3]verdict{escaped, escaped, escaped}, "escaped"},
	{"a statically linked program", `SIMGPU_STATE=` + cluster.Dir + `/simgpu/state ${escape}-static path:` + driver + ` $hold`, [3]verdict{escaped, escaped, escaped}, "escaped"},
	{"a loader of its own", `sed 's#/etc/ld.so.preload#/etc/ld.so.xreload#' "$(readlink -f /lib64/ld-linux-*.so.2)" >loader
		chmod +x loader; unset LD_PRELOAD; ./loader $run`, [3]verdict{escaped, escaped, escaped}, "escaped"},
	{"mounts in user and mount namespaces of its own", hide, [3]verdict{escaped, escaped, stopped}, "escaped"},
	{"the job's cache file overwritten while a process holds memory", cache + cluster.Worker + ` --alloc 7G --hold 60 >first & first=$!
		until [ -s first ]; do sleep 0.1; done; dd if=/dev/zero of=$cache bs=1024 seek=2051 count=4096 conv=notrunc 2>/dev/null
		$escape dlsym $hold; kill $first; cat first`, [3]verdict{escaped, escaped, escaped}, "escaped"},
}

// The jobs that try have 8 GiB. Five on a card leave room for what they take.
const (
	limit     = 8 * gib
	limitArgs = "--gres=vgpu:20 --comment=vgpu(mem=8G)" // as the plugin is not always there
)

// TestEscapes tries to get around the limits at each level, and holds what
// came out against the table above and that of docs/security.md.
func TestEscapes(t *testing.T) {
	opts := cluster.Options{Cards: slices.Repeat(oneCard.Cards, 3)}
	opts.Config = "[audit]\nescaped = \"report\"\n" // so that all can be looked at
	s := up(t, opts)
	s.installEscapes()
	for i, level := range levels {
		s.setPlugstack(level.plugstack)
		if r := s.As(alice, "unshare", "--user", "--map-root-user", "true"); r.Code != 0 {
			t.Skipf("this machine allows no user namespaces: %s", r)
		}
		for j, got := range s.tryAll() {
			if e := escapes[j]; got.verdict != e.want[i] {
				t.Errorf("%s: %s: %s, want %s; output:\n%s", level.name, e.name, got.verdict, e.want[i], got.output)
			}
		}
	}
	s.setPlugstack(levels[0].plugstack)
	s.allAreAudited()
	page.Check(t, "../../docs/security.md", "escapes", "go test ./tests/e2e -update", escapeTable(), *update)
}

// installEscapes puts the programs where every user may run them.
func (s site) installEscapes() {
	s.t.Helper()
	for _, f := range []struct{ from, to string }{
		{"vgpu-escape", "vgpu-escape"},
		{"vgpu-escape-static", "vgpu-escape-static"},
		{"vgpu-escape", "vgpu-escape-suid"},
		{"stress-wrap.so", "stress-wrap.so"},
		{"stress-linked.so", "stress-linked.so"},
	} {
		data, err := os.ReadFile(filepath.Join("../../build/tests", f.from))
		if err != nil {
			s.t.Fatalf("%v (run make first)", err)
		}
		if err := os.WriteFile(filepath.Join(cluster.Dir, "bin", f.to), data, 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	suid := filepath.Join(cluster.Dir, "bin/vgpu-escape-suid")
	if r := s.As("root", "chown", bob, suid); r.Code != 0 {
		s.t.Fatal(r)
	}
	if err := os.Chmod(suid, 0o755|os.ModeSetuid); err != nil {
		s.t.Fatal(err)
	}
}

// setPlugstack changes how the tasks that start from now on are held. Every
// slurmstepd reads the file.
func (s site) setPlugstack(text string) {
	s.t.Helper()
	if err := os.WriteFile("/etc/slurm/plugstack.conf", []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

func (e escape) shell(hold int) string {
	return fmt.Sprintf("export escape=%[1]s hold=%[2]d run='%[1]s dlsym %[2]d'\n%[3]s\n", cluster.Dir+"/bin/vgpu-escape", hold, e.script)
}

type attempt struct {
	verdict verdict
	output  string
}

// tryAll runs all escapes in one job, one after another, each in a shell and a
// folder of its own.
func (s site) tryAll() []attempt {
	s.t.Helper()
	var script strings.Builder
	for i, e := range escapes {
		fmt.Fprintf(&script, "mkdir -p %[1]d; ( cd %[1]d\n%[2]s ) >%[1]d/out 2>&1\n", i, e.shell(0))
	}
	_ = os.RemoveAll(s.Home(alice))
	s.completed(alice, s.submit(alice, limitArgs, script.String()+"true"))
	tried := make([]attempt, len(escapes))
	for i := range escapes {
		out := s.File(alice, fmt.Sprintf("%d/out", i))
		tried[i] = attempt{judge(out), out}
	}
	return tried
}

// judge adds up what the programs of one attempt got.
func judge(output string) verdict {
	sum, _ := cluster.Taken(output)
	looks := cluster.Looks(output)
	for _, l := range looks {
		sum += l.Granted
	}
	switch {
	case sum == 0:
		return stopped
	case sum > limit:
		return escaped
	}
	return held
}

// allAreAudited tries what gets more than its limit at level 1, each in a job
// of its own, and waits until the audit has told each job.
func (s site) allAreAudited() {
	s.t.Helper()
	jobs := map[int]escape{}
	for _, e := range escapes {
		if e.audited != "" {
			jobs[s.submit(alice, limitArgs, "mkdir -p audited.$SLURM_JOB_ID; cd audited.$SLURM_JOB_ID\n"+e.shell(60))] = e
		}
	}
	var missing []string
	defer func() {
		for _, m := range missing {
			s.t.Error(m)
		}
	}()
	for end := time.Now().Add(shortWait); ; time.Sleep(200 * time.Millisecond) {
		missing = nil
		for job, e := range jobs {
			if !s.told(job, e.audited) {
				missing = append(missing, fmt.Sprintf("%s: the audit has not called job %d %s:\n%s", e.name, job, e.audited, s.Output(alice, job)))
			}
		}
		if len(missing) == 0 || time.Now().After(end) {
			break
		}
	}
	for job := range jobs {
		s.As(alice, "scancel", fmt.Sprint(job))
	}
	for job := range jobs {
		if _, err := s.Wait(job, 30*time.Second); err != nil {
			s.t.Error(err)
		}
	}
}

// told says whether gresd has told the job what its audit found.
func (s site) told(job int, kind string) bool {
	says := map[string]string{"unregistered": "without libvgpu", "escaped": "and so the job has"}
	data, _ := os.ReadFile(filepath.Join(cluster.JobDir(job), "messages"))
	return slices.ContainsFunc(strings.Split(string(data), "\n"), func(line string) bool {
		return strings.Contains(line, "vgpu: audit: ") && strings.Contains(line, says[kind])
	})
}

// escapeTable is the table of docs/security.md.
func escapeTable() string {
	var b strings.Builder
	b.WriteString("| try |")
	for _, l := range levels {
		fmt.Fprintf(&b, " %s |", l.name)
	}
	b.WriteString(" audit |\n|---|---|---|---|---|\n")
	for _, e := range escapes {
		fmt.Fprintf(&b, "| %s |", e.name)
		for _, v := range e.want {
			if v == escaped {
				v = "**escapes**"
			}
			fmt.Fprintf(&b, " %s |", v)
		}
		audited := "–"
		if e.audited != "" {
			audited = "`" + e.audited + "`"
		}
		fmt.Fprintf(&b, " %s |\n", audited)
	}
	return b.String()
}
