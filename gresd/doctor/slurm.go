// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Releases of Slurm that slurm-vgpu was run on, see docs/slurm.md, and the range
// that the plugin is built for.
var (
	ranSlurm               = []string{"22.05", "24.11", "26.05"}
	oldestSlurm, newestRan = "22.05", "26.05"
)

// facts are settings of Slurm, by name in lower case.
type facts struct{ values map[string]string }

func (f *facts) get(name string) string { return f.values[strings.ToLower(name)] }

// list is a value that is a list.
func (f *facts) list(name string) []string {
	return strings.FieldsFunc(f.get(name), func(r rune) bool { return r == ',' || r == ' ' })
}

// fetched is where slurmd keeps the files that it has from slurmctld.
var fetched = "/run/slurm/conf"

// dir is the folder of this host's files of Slurm. slurmctld names its own slurm.conf; where there is
// none of that name here, Slurm's programs read what slurmd has fetched (configless).
func (f *facts) dir() string {
	conf := f.get("SLURM_CONF")
	if _, err := os.Stat(conf); err != nil {
		if _, err := os.Stat(filepath.Join(fetched, "slurm.conf")); err == nil {
			return fetched
		}
	}
	return filepath.Dir(conf)
}

// settings are what slurmctld has told, else what slurm.conf says; nil when there
// is neither.
func (n *node) settings() *facts {
	if n.slurm != nil {
		return n.slurm
	}
	path := cmp.Or(n.cfg.Slurm.Conf, os.Getenv("SLURM_CONF"), "/etc/slurm/slurm.conf")
	said, err := slurm.ReadConf(path)
	if err != nil {
		return nil
	}
	said["slurm_conf"] = path
	return &facts{said}
}

// findScontrol is gresd's, whose PATH is not that of the administrator who runs the doctor. A path in
// the configuration may be newer than gresd.
func (n *node) findScontrol() (string, error) {
	if n.gresd != nil && n.gresd.Scontrol != "" && !strings.Contains(n.cfg.Slurm.Scontrol, "/") {
		return n.gresd.Scontrol, nil
	}
	return slurm.Find(n.cfg.Slurm.Scontrol, slurm.Slurmds()...)
}

func (n *node) scontrol(ctx context.Context, args ...string) (string, error) {
	path, err := n.findScontrol()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = slurm.Environment(os.Environ(), n.cfg.Slurm.Conf)
	// A wrapper of the site may have children that outlive it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 200 * time.Millisecond
	out, err := cmd.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if ctx.Err() != nil {
		return "", fmt.Errorf("scontrol %s: no answer in time", strings.Join(args, " "))
	}
	if err != nil {
		last := text[strings.LastIndexByte(text, '\n')+1:]
		return "", fmt.Errorf("scontrol %s: %w: %s", strings.Join(args, " "), err, last)
	}
	return text, nil
}

func checkSlurm(ctx context.Context, n *node, tell func(Status, string, string)) {
	text, err := n.scontrol(ctx, "show", "config")
	if err != nil {
		tell(Fail, err.Error(), "is slurmctld running, munge too? scontrol ping; munge -n | unmunge")
		return
	}
	f := &facts{slurm.ParseShown(text)}
	n.slurm = f
	well := true
	say := func(s Status, message, remedy string) { well = well && s == Pass; tell(s, message, remedy) }
	release := releaseOf(f.get("SLURM_VERSION"))
	switch {
	case release < oldestSlurm:
		say(Fail, "Slurm "+release+" is older than "+oldestSlurm, "upgrade Slurm")
	case !slices.Contains(ranSlurm, release) && release > newestRan:
		say(Warn, "Slurm "+release+" is newer than what the plugin was run on", "docs/slurm.md; look for a newer slurm-vgpu")
	case !slices.Contains(ranSlurm, release):
		say(Warn, "Slurm "+release+": meant to work, not run by us", "docs/slurm.md")
	}
	want := []string{"gpu", "vgpu"}
	if n.cfg.Placement.By == config.PlacementSlurm {
		want = append(want, "shard")
		if s := f.get("SelectType"); s != "select/cons_tres" {
			say(Fail, fmt.Sprintf("SelectType is %q: shares are not kept apart", s), "SelectType=select/cons_tres in slurm.conf")
		}
		if slices.Contains(f.list("SelectTypeParameters"), "MULTIPLE_SHARING_GRES_PJ") {
			say(Warn, "SelectTypeParameters has MULTIPLE_SHARING_GRES_PJ: slurmctld may split one share over cards, and gresd sends such a job back",
				"take it out of slurm.conf where no job uses --tres-per-task; docs/placement.md")
		}
	}
	there := f.list("GresTypes")
	if lacks := slices.DeleteFunc(want, func(name string) bool { return slices.Contains(there, name) }); len(lacks) > 0 {
		say(Fail, "GresTypes lacks "+strings.Join(lacks, ", "), "GresTypes=gpu,shard,vgpu in slurm.conf, and restart slurmctld")
	}
	checkSettings(f, n.cfg.MPS, say)
	n.checkNode(ctx, say)
	if well {
		tell(Pass, "Slurm "+f.get("SLURM_VERSION")+", node "+n.name(ctx)+" has the shares", "")
	}
}

// releaseOf is "24.11" of "24.11.5".
func releaseOf(version string) string {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return version
	}
	return parts[0] + "." + parts[1]
}

// name is what Slurm calls this node.
func (n *node) name(ctx context.Context) string {
	if name := os.Getenv("SLURMD_NODENAME"); name != "" {
		return name
	}
	client := wire.Client{Socket: n.cfg.Paths.Socket(), Timeout: 2 * time.Second}
	if rep, err := client.Do(ctx, wire.Request{Op: wire.OpStatus}); err == nil && rep.Status != nil && rep.Status.Node != "" {
		name, _, _ := strings.Cut(rep.Status.Node, ",")
		return name
	}
	host, err := os.Hostname()
	if err != nil {
		return "localhost"
	}
	short, _, _ := strings.Cut(host, ".")
	// Before the first job, only slurmctld knows the name if it is not the host's.
	if nodes, err := n.scontrol(ctx, "show", "nodes", "-o"); err == nil {
		return cmp.Or(nodeOf(nodes, host, short), short)
	}
	return short
}

// nodeOf is the name of the first node that runs on a host, "" if none does.
func nodeOf(nodes string, hosts ...string) string {
	for line := range strings.Lines(nodes) {
		has := map[string]string{}
		for word := range strings.FieldsSeq(line) {
			key, value, _ := strings.Cut(word, "=")
			if _, first := has[key]; !first {
				has[key] = value // a comment comes later, and can hold any words
			}
		}
		if slices.Contains(hosts, has["NodeHostName"]) {
			return has["NodeName"]
		}
	}
	return ""
}

// checkNode compares what slurmctld has of the node with the cards.
func (n *node) checkNode(ctx context.Context, say func(Status, string, string)) {
	name := n.name(ctx)
	text, err := n.scontrol(ctx, "show", "node", name)
	if err != nil {
		say(Fail, err.Error(), "a NodeName= line in slurm.conf for this host")
		return
	}
	has := map[string]string{}
	for line := range strings.Lines(text) {
		for _, key := range []string{"Gres", "State", "Reason"} {
			if rest, is := strings.CutPrefix(strings.TrimSpace(line), key+"="); is {
				has[key] = rest
			}
		}
	}
	state, _, _ := strings.Cut(has["State"], " ")
	for _, bad := range []string{"DRAIN", "DOWN", "FAIL", "INVAL", "NOT_RESPONDING"} {
		if strings.Contains(state, bad) {
			say(Warn, fmt.Sprintf("node %s is %s: %s", name, state, has["Reason"]), "scontrol update node="+name+" state=resume, when the reason is gone")
			break
		}
	}
	if n.cards == nil {
		return
	}
	if want := n.wantedGres(); want != nil && !sameGres(want, has["Gres"]) {
		say(Fail, fmt.Sprintf("node %s has Gres=%s, its cards are %s", name, has["Gres"], strings.Join(want, ",")), "gresd gres-conf prints the line for slurm.conf; then restart slurmd, slurmctld, slurmd, in this order (INSTALL.md, step 4)")
	}
}

func checkHooks(_ context.Context, n *node, tell func(Status, string, string)) {
	f := n.settings()
	if f == nil {
		tell(Skip, "no slurm.conf", "")
		return
	}
	well := true
	for _, hook := range []struct {
		name string
		must bool
	}{{"Prolog", true}, {"Epilog", true}, {"TaskProlog", false}, {"HealthCheckProgram", false}} {
		s := Warn
		if hook.must {
			s = Fail
		}
		programs := f.list(hook.name)
		for i := range 8 { // as slurmctld tells lists: Prolog[0]
			programs = append(programs, f.list(fmt.Sprintf("%s[%d]", hook.name, i))...)
		}
		if len(programs) == 0 {
			well = false
			tell(s, hook.name+" is not set", hook.name+"=/usr/sbin/vgpu-prolog in slurm.conf")
			continue
		}
		if err := n.calls(programs, "vgpu"); err != nil {
			if !errors.Is(err, errOther) && hook.must {
				s = Fail
			} else {
				s = Warn
			}
			well = false
			tell(s, hook.name+": "+err.Error(), "call vgpu-prolog from it and pass its exit code on, or set "+hook.name+"=/usr/sbin/vgpu-prolog")
		}
	}
	if well {
		tell(Pass, "Prolog, Epilog, TaskProlog and HealthCheckProgram are set", "")
	}
}

// errOther: a program of the site, which may call ours in a way that is not seen.
var errOther = errors.New("no call of vgpu-prolog is seen in it")

// calls says whether one of the programs is ours, or a script that names it.
func (n *node) calls(programs []string, word string) error {
	for _, path := range programs {
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if info.Mode()&0o111 == 0 {
			return fmt.Errorf("%s is not executable", path)
		}
		if strings.HasPrefix(filepath.Base(path), word) {
			return nil
		}
		if info.Size() < 1<<20 {
			if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), word) {
				return nil
			}
		}
	}
	return fmt.Errorf("%s: %w", strings.Join(programs, ", "), errOther)
}

func checkLua(_ context.Context, n *node, tell func(Status, string, string)) {
	f := n.settings()
	if f == nil {
		tell(Skip, "no slurm.conf", "")
		return
	}
	well := true
	say := func(s Status, message, remedy string) { well = false; tell(s, message, remedy) }
	gresdPlaces := n.cfg.Placement.By == config.PlacementGresd
	for _, plugin := range []struct{ setting, script, does string }{
		{"JobSubmitPlugins", "job_submit.lua", "--gres=vgpu:N is not turned into shares"},
		{"CliFilterPlugins", "cli_filter.lua", "srun --gres=vgpu:N inside a job finds no shares"},
	} {
		active := slices.Contains(f.list(plugin.setting), "lua")
		if gresdPlaces && plugin.setting == "CliFilterPlugins" {
			if text, err := os.ReadFile(filepath.Join(f.dir(), plugin.script)); active && err == nil && strings.Contains(string(text), "vgpu") {
				say(Fail, plugin.script+" asks for shards, and gresd places: srun --gres=vgpu:N finds none", "take lua out of "+plugin.setting+" in slurm.conf; docs/placement.md")
			}
			continue
		}
		if !active {
			say(Fail, plugin.setting+" lacks lua: "+plugin.does, plugin.setting+"=lua in slurm.conf, and restart slurmctld")
			continue
		}
		path := filepath.Join(f.dir(), plugin.script)
		text, err := os.ReadFile(path)
		switch {
		case err != nil && plugin.script == "job_submit.lua" && !isController(f):
			continue // it belongs on slurmctld's host
		case err != nil:
			say(Fail, err.Error()+": "+plugin.does, "ln -s /usr/share/slurm-vgpu/"+plugin.script+" "+f.dir())
		case !strings.Contains(string(text), "vgpu"):
			say(Fail, path+" knows nothing of vgpu: "+plugin.does, "load ours from it: see the head of /usr/share/slurm-vgpu/"+plugin.script)
		}
	}
	if isController(f) {
		// As job_submit.lua looks for it.
		_, err := os.Stat(filepath.Join(f.dir(), cardsOfSite))
		if _, shared := os.Stat(filepath.Join("/etc/slurm", cardsOfSite)); err != nil && shared != nil {
			say(Warn, err.Error()+": memory in percent cannot be checked at submit", "write the memory of your cards into vgpu_cards.lua there: package slurm-vgpu-controller, or /usr/share/doc/slurm-vgpu/examples/slurm")
		}
	}
	if well {
		tell(Pass, "job_submit and cli_filter are active", "")
	}
}

const cardsOfSite = "vgpu_cards.lua"

// isController says whether slurmctld is meant to run on this host.
func isController(f *facts) bool {
	host, err := os.Hostname()
	if err != nil {
		return false
	}
	short, _, _ := strings.Cut(host, ".")
	for _, name := range []string{"SlurmctldHost", "SlurmctldHost[0]", "SlurmctldHost[1]"} {
		value, _, _ := strings.Cut(f.get(name), "(")
		if value == host || value == short {
			return true
		}
	}
	return false
}

func checkCgroup(_ context.Context, n *node, tell func(Status, string, string)) {
	f := n.settings()
	if f == nil {
		tell(Skip, "no slurm.conf", "")
		return
	}
	well := true
	say := func(message, remedy string) { well = false; tell(Warn, message, remedy) }
	if p := f.get("ProctrackType"); p != "proctrack/cgroup" {
		say(fmt.Sprintf("ProctrackType is %q: an orphan's job is known by its environment only", p), "ProctrackType=proctrack/cgroup in slurm.conf")
	}
	if !strings.Contains(f.get("TaskPlugin"), "task/cgroup") {
		say("TaskPlugin lacks task/cgroup: jobs can open every card", "TaskPlugin=task/cgroup,task/affinity in slurm.conf")
	}
	devices, _ := slurm.ReadConf(filepath.Join(f.dir(), "cgroup.conf")) // without it, nothing is set
	if !strings.EqualFold(devices["constraindevices"], "yes") {
		say("ConstrainDevices is not set: jobs can open every card", "ConstrainDevices=yes in cgroup.conf")
	}
	if !exists("/sys/fs/cgroup/cgroup.controllers") && !exists("/sys/fs/cgroup/devices") {
		say("no cgroups (v1 devices or v2) at /sys/fs/cgroup", "mount -t cgroup2 none /sys/fs/cgroup, or boot with systemd")
	}
	if well {
		tell(Pass, "processes are tracked by cgroup, cards confined", "")
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
