// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

// What docs/coverage.md, docs/slurm.md and INSTALL.md say was run.
const (
	oldestDriver, ranDriver, ranCUDA = 535, 580, 13
	oldestSlurm                      = "22.05"
	newestSlurm                      = "26.05"
)

var ranSlurm = []string{oldestSlurm, "24.11", newestSlurm}

const (
	// leastRoom is the space that gresd needs: the two files of a job have at most 2 MiB on disk, most
	// of it holes. The ledger is small, but must never be cut.
	leastRoom  = 16 * gpu.MiB
	leastFiles = 1000
	// leastPrologTime is what a Prolog may need if gresd or slurmctld is slow: three commands of
	// Slurm, and some time for an answer.
	leastPrologTime = 30

	restart  = "systemctl restart gresd"
	reload   = "gresd gres-conf prints the lines for gres.conf and slurm.conf; then restart slurmd, slurmctld, slurmd, in this order (INSTALL.md, step 4)"
	examples = "/usr/share/doc/slurm-vgpu/examples"
)

// badState finds the states of a node that starts no job, or can have lost its shares.
var badState = regexp.MustCompile(`DRAIN|DOWN|FAIL|INVAL|NOT_RESPONDING`)

// checks are in the order of the report. A check can use the facts of the checks before it.
var checks = []check{
	{
		name: "config", question: "Can vgpu.toml be read?", look: lookConfig, remedy: "correct the key that the message names; vgpuctl check-config FILE prints the same",
		judge: func(n *node, r *results) string {
			r.warn(n.cfg.Path == "", "install -D -m 644 "+examples+"/vgpu.toml %[1]s", "%s is not there: the defaults are in force", n.Config)
			for _, key := range n.cfg.Warnings {
				r.warn(true, "change this line, then: systemctl reload gresd", "%s", key)
			}
			return n.cfg.Path
		},
	},
	{
		name: "driver", question: "Does the driver answer, and were its version and its CUDA tested (coverage.md)?", look: lookDriver,
		remedy: "install the NVIDIA driver, load its module (nvidia-smi shows whether it works), or set [nvml] library",
		judge: func(n *node, r *results) string {
			v := n.version
			r.warn(n.versionErr != nil, "nvidia-smi", "its version is unknown: %v", n.versionErr)
			switch driver, cuda := major(v.Driver), major(v.CUDA); {
			case n.versionErr != nil:
			case driver == 0:
				r.warn(true, "docs/coverage.md lists the tested versions", "driver %q, CUDA %s: not a version, want a number like 580.95.05", v.Driver, v.CUDA)
			case driver < oldestDriver:
				r.fail(true, "install a driver from %[3]d on", "driver %s, CUDA %s: older than %d", v.Driver, v.CUDA, oldestDriver)
			case cuda > ranCUDA:
				r.warn(true, "docs/coverage.md; look for a newer slurm-vgpu",
					"driver %s, CUDA %s: tested up to CUDA %d, and the library may not know all functions of a later one", v.Driver, v.CUDA, ranCUDA)
			case driver != ranDriver:
				r.warn(true, "once on this node: make gpu-check in a built checkout, or ./gpu-check in the folder that make gpu-check-bundle makes",
					"driver %s, CUDA %s: meant to work, but only %d was run by us", v.Driver, v.CUDA, ranDriver)
			}
			return fmt.Sprintf("driver %s, CUDA %s", v.Driver, v.CUDA)
		},
	},
	{
		name: "cards", question: "Can each card be read, has it its device files, and has each MIG instance its GPU instance to itself?", look: lookCards, always: true,
		judge: func(n *node, r *results) string {
			r.fail(n.listErr != nil, "nvidia-smi; reset the card (nvidia-smi -r) or restart the node", "%v", n.listErr)
			r.fail(n.listErr == nil && len(n.list) == 0, "lspci | grep -i nvidia; dmesg", "the driver knows no card, want at least one")
			var names []string
			for _, c := range n.list {
				names = append(names, fmt.Sprintf("%d: %s", c.Index, c.Type))
				files := c.Files()
				r.warn(!isDevice(files[0]), "nvidia-modprobe -u -c %[3]d", "%[1]s of card %[2]d is not there", files[0], c.Index, c.Minor)
				for i, file := range files[1:] {
					capability := []string{c.Instance.CapPath(c.Minor), c.Instance.ComputeCapPath(c.Minor)}[i]
					r.warn(!isDevice(file), "nvidia-modprobe -f %[3]s", "%[1]s of MIG instance %[2]d is not there", file, c.Index, capability)
				}
				r.warn(c.MIG && c.IsInstance(), "create one compute instance in each GPU instance that gresd is to share",
					"card %d is one of several compute instances that share a GPU instance and its memory: gresd does not share it", c.Index)
				r.warn(c.MIG && !c.IsInstance(), "nvidia-smi mig -cgi PROFILES -C, or nvidia-smi -mig 0; then gresd gres-conf",
					"card %d is in MIG mode and has no instances: nothing can run on it", c.Index)
			}
			return fmt.Sprintf("%d of type %s", len(names), strings.Join(names, ", "))
		},
	},
	{
		name: "limits", question: "Does the library alone enforce memory limits, or the driver, too ([memory] driver_limits)?", look: needsDriver,
		judge: func(n *node, r *results) string {
			r.warn(n.cfg.Memory.DriverLimits && !n.cards.HasLimits(), "install a driver from r615 on, or set driver_limits = false",
				"the library alone enforces memory limits: [memory] driver_limits is true, but this driver has no limits")
			switch {
			case n.cfg.Memory.DriverLimits:
				return "the library enforces memory limits, and the driver as well, for the cgroups of jobs"
			case n.cards.HasLimits():
				return "the library alone enforces memory limits; the driver can, too ([memory] driver_limits)"
			}
			return "the library alone enforces memory limits"
		},
	},
	{
		name: "library", question: "Is the library root's alone, does it load into a program, and do its hooks answer, by name and by cuGetProcAddress?", look: lookLibrary,
		remedy: "reinstall the package slurm-vgpu-node (or make install) of the release of gresd, or set [paths] library; ldd of the library shows what is missing",
		judge: func(n *node, r *results) string {
			library, got := n.cfg.Paths.Library, n.probed
			switch {
			case n.probeErr != nil:
				r.fail(true, "", "%s cannot be tried: %v", library, n.probeErr)
			case got.ByName != ProbeLimit:
				r.fail(true, "", "%s does not answer: a program with a limit of %s sees %s", library, ProbeLimit, got.ByName)
			case got.ByAddress != 0 && got.ByAddress != ProbeLimit:
				r.fail(true, "", "%s does not answer cuGetProcAddress: a program with a limit of %s sees %s", library, ProbeLimit, got.ByAddress)
			}
			r.warn(len(n.unknownSymbols) > 0,
				"update slurm-vgpu; vgpuctl inspect /run/vgpu/jobs/JOB/cache shows which processes. A job's user can write its cache: if one job alone is named, ask that user",
				"%s is older than the driver, by the caches of jobs %s: their programs asked for functions that have a newer version in the driver",
				library, strings.Join(n.unknownSymbols, ", "))
			return library + " loads, and its hooks answer"
		},
	},
	{
		name: "preload", question: "Does the preload list of tasks name the library, and can it be bound over /etc/ld.so.preload?", look: lookPreload,
		remedy: restart + ": it writes this file when it starts",
		judge: func(n *node, r *results) string {
			r.fail(!slices.Contains(n.preload, n.cfg.Paths.Library), "", "%s does not name %s", n.cfg.Paths.Preload(), n.cfg.Paths.Library)
			info, err := os.Lstat(grant.HostPreload)
			r.fail(err != nil || !info.Mode().IsRegular(), "touch %[1]s", "%s is no file: the list cannot be bound over it in tasks", grant.HostPreload)
			return n.cfg.Paths.Preload() + " names the library"
		},
	},
	{
		name: "gresd", question: "Does gresd answer, has it started, is it of this version, does it know the driver's cards, and has it no problems?", look: lookGresd,
		remedy: "systemctl status gresd; journalctl -u gresd",
		judge: func(n *node, r *results) string {
			g := n.gresd
			r.warn(!g.Ready, "scontrol ping; journalctl -u gresd", "still starting: it waits for slurmctld")
			r.warn(g.Version != n.Version, restart+", after an upgrade of both", "gresd is %s, vgpuctl is %s", g.Version, n.Version)
			r.fail(g.SlurmProblem != "", "the path in vgpu.toml, and "+restart+"; scontrol ping", "%s", g.SlurmProblem)
			for _, problem := range g.Problems {
				r.warn(problem != g.SlurmProblem, "vgpuctl status; docs/troubleshooting.md", "%s", problem)
			}
			r.fail(n.cards != nil && n.listErr == nil && !n.sameCards(), restart, "gresd knows %d cards, the driver %d, or others", len(g.Cards), len(n.list))
			for _, c := range g.Cards {
				r.warn(!c.Healthy, "docs/troubleshooting.md, sick cards; vgpuctl uncordon %[1]d", "card %d is out: %s", c.Index, c.Why)
			}
			return fmt.Sprintf("%s answers, jobs %d", g.Version, g.Jobs)
		},
	},
	{
		name: "slices", question: "Does each card obey time slices, by gresd's test of it, or why was it not tested?", look: lookSlices,
		judge: func(n *node, r *results) string {
			for _, c := range n.gresd.Cards {
				ignored, obeyed := c.Slices == string(probe.Ignored), c.Slices == string(probe.Obeyed)
				r.warn(ignored, "nothing: shares hold, with some loss; another driver may obey (docs/troubleshooting.md)",
					"card %d does not obey time slices: its jobs take turns", c.Index)
				r.skip(!ignored && !obeyed, "card %d: not tested: %s", c.Index, cmp.Or(c.SlicesWhy, "not yet"))
			}
			return fmt.Sprintf("cards that obey time slices: %d", len(n.gresd.Cards))
		},
	},
	{
		name: "socket", question: "Is the socket root's, and can users reach it?", look: lookSocket, remedy: "systemctl start gresd",
		judge: func(n *node, r *results) string {
			path, st := n.cfg.Paths.Socket(), n.socket
			r.fail(st.Mode&unix.S_IFMT != unix.S_IFSOCK, "remove it; "+restart, "%s: not a socket", path)
			r.fail(st.Uid != 0, "find out who; "+restart, "%s: owned by user %d, want root: its owner answers in gresd's place", path, st.Uid)
			r.fail(st.Mode&0o666 != 0o666, restart, "%s: mode %04o, want 0666: users' processes cannot connect", path, st.Mode&0o7777)
			for dir := path; dir != "/"; {
				dir = filepath.Dir(dir)
				var above unix.Stat_t
				_ = unix.Stat(dir, &above) // mode 0 if it cannot be read
				mode := above.Mode & 0o7777
				r.fail(mode&0o001 == 0, "chmod o+x %[1]s", "%s: mode %04o: users cannot reach the socket in it", dir, mode)
				r.fail(mode&unix.S_ISVTX == 0 && mode&0o002 != 0, "chmod o-w %[1]s", "%s: mode %04o: each user can replace what is in it", dir, mode)
			}
			return path + ": root's, and users may connect"
		},
	},
	{
		name: "space", question: "Is run_dir a tmpfs with room, and state_dir a disk with room?", look: lookSpace, remedy: "systemctl start gresd: it makes this folder",
		judge: func(n *node, r *results) string {
			run, state, readable := n.cfg.Paths.RunDir, n.cfg.Paths.StateDir, n.stateErr == nil
			denied := errors.Is(n.stateErr, fs.ErrPermission)
			r.skip(denied, "%v", n.stateErr)
			r.fail(!readable && !denied, "", "%v", n.stateErr)
			r.fail(free(n.run) < leastRoom, "make room: df %[1]s", "%s: %s free, want at least %s: jobs get no grant", run, free(n.run), leastRoom)
			r.fail(n.run.Files > 0 && n.run.Ffree < leastFiles, "df -i %[1]s", "%s: room for %d files, want at least %d", run, n.run.Ffree, leastFiles)
			r.warn(!inMemory(n.run), "[paths] run_dir below /run", "%s is not on a tmpfs: counting costs disk writes, and old grants outlive a restart", run)
			r.fail(readable && free(n.state) < leastRoom, "make room: df %[1]s", "%s: %s free, want at least %s: the ledger cannot be written", state, free(n.state), leastRoom)
			r.warn(readable && inMemory(n.state), "[paths] state_dir on a disk", "%s is on a tmpfs: the ledger is lost with the node's memory", state)
			return fmt.Sprintf("%s free in %s, %s in %s", free(n.run), run, free(n.state), state)
		},
	},
	{
		// A wrong clock breaks munge, and with it every question to slurmctld.
		name: "clock", question: "Is the clock right, and synchronized?", look: lookClock,
		judge: func(n *node, r *results) string {
			old := n.now.Year() < 2025
			r.fail(old, "chronyc makestep, or timedatectl set-ntp true", "the clock says %s, want a time after 2024", n.now.UTC().Format("2006-01-02T15:04:05Z"))
			r.warn(!old && !n.synchronized, "systemctl enable --now chrony, or timedatectl set-ntp true", "not synchronized: munge refuses messages that are 5 minutes off")
			return "synchronized"
		},
	},
	{
		name: "slurm", question: "Does slurmctld answer, was its release tested, and do its settings and the node's Gres= and state allow shares?", look: lookSlurm, slow: true,
		remedy: "is slurmctld running, munge too? scontrol ping; munge -n | unmunge",
		judge: func(n *node, r *results) string {
			release, selects := n.release(), n.slurm.get("SelectType")
			r.fail(release < oldestSlurm, "upgrade Slurm", "Slurm %s is older than %s", release, oldestSlurm)
			r.warn(release > newestSlurm, "docs/slurm.md; look for a newer slurm-vgpu", "Slurm %s is newer than %s, the newest that the plugin was run on", release, newestSlurm)
			r.warn(release > oldestSlurm && release < newestSlurm && !slices.Contains(ranSlurm, release), "docs/slurm.md lists the tested releases",
				"Slurm %s: meant to work, but not run by us", release)
			r.fail(n.slurmPlaces() && selects != "select/cons_tres", "SelectType=select/cons_tres in slurm.conf",
				"SelectType is %q, want select/cons_tres: shares are not kept apart", selects)
			r.warn(n.slurmPlaces() && n.slurm.has("SelectTypeParameters", "MULTIPLE_SHARING_GRES_PJ"), "take it out of slurm.conf if no job uses --tres-per-task; docs/placement.md",
				"SelectTypeParameters has MULTIPLE_SHARING_GRES_PJ: slurmctld may split one share over cards, and gresd sends such a job back")
			for _, name := range []string{"gpu", "vgpu", "shard"} {
				r.fail(!n.slurm.has("GresTypes", name) && (name != "shard" || n.slurmPlaces()), "GresTypes=gpu,shard,vgpu in slurm.conf, and restart slurmctld",
					"GresTypes lacks %s, want gpu,shard,vgpu", name)
			}
			for _, name := range []string{"PrologEpilogTimeout", "PrologTimeout"} {
				seconds, _ := strconv.Atoi(n.slurm.get(name)) // slurm.NoTimeout is more
				r.warn(seconds > 0 && seconds < leastPrologTime, "%[1]s=%[3]d or more in slurm.conf",
					"%s is %d s, want %d or more: a job with a share is sent back when slurmctld does not answer at once", name, seconds, leastPrologTime)
			}
			r.warn(n.slurm.get("JobRequeue") == "0", "JobRequeue=1 in slurm.conf, or sbatch --requeue", "JobRequeue is 0, want 1: a batch job that finds its card out of use fails")
			byAccount := n.cfg.MPS.DefaultEngine == gpu.Auto && n.cfg.MPS.Trust == config.TrustAccount
			r.warn(byAccount && !n.slurm.has("AccountingStorageEnforce", "associations"), `AccountingStorageEnforce=associations in slurm.conf, or [mps] trust = "user"`,
				"AccountingStorageEnforce lacks associations: users name any account, and the engine auto trusts users of one account")
			r.fail(n.recordErr != nil, "a NodeName= line in slurm.conf for this host", "%v", n.recordErr)
			r.warn(badState.MatchString(n.record.State), "scontrol update node=%[1]s state=resume, when the reason is gone", "node %s is %s: %s", n.name, n.record.State, n.record.Reason)
			want := n.gresConf().gres()
			r.fail(n.cards != nil && n.listErr == nil && n.recordErr == nil && !sameGres(want, n.record.Gres), reload,
				"node %s has Gres=%s, its cards are %s", n.name, n.record.Gres, want)
			return "Slurm " + n.slurm.get("SLURM_VERSION") + ", node " + n.name + " has the shares"
		},
	},
	{
		name: "hooks", question: "Are Prolog, Epilog, TaskProlog and HealthCheckProgram vgpu-prolog, or do they call it?", look: lookSettings,
		remedy: "set it to /usr/sbin/vgpu-prolog in slurm.conf, or call vgpu-prolog from it and pass its exit code on",
		judge: func(n *node, r *results) string {
			for i, name := range []string{"Prolog", "Epilog", "TaskProlog", "HealthCheckProgram"} {
				programs, needed := n.settings.all(name), i < 2
				calls, err := callPrologs(programs)
				r.fail(needed && len(programs) == 0, "", "%s is not set", name)
				r.fail(needed && err != nil, "", "%s: %v", name, err)
				r.warn(!needed && len(programs) == 0, "", "%s is not set", name)
				r.warn(!needed && err != nil, "", "%s: %v", name, err)
				r.warn(len(programs) > 0 && err == nil && !calls, "", "%s: no call of vgpu-prolog is seen in %s", name, strings.Join(programs, ", "))
			}
			return "Prolog, Epilog, TaskProlog and HealthCheckProgram are set"
		},
	},
	{
		name: "lua", question: "Is job_submit.lua there and active, and cli_filter.lua, unless gresd places?", look: lookSettings,
		remedy: "ln -s /usr/share/slurm-vgpu/cli_filter.lua (and, on slurmctld's host, job_submit.lua) into the folder of slurm.conf, or load it from the site's own: see its head",
		judge: func(n *node, r *results) string {
			submit, filter := n.script("JobSubmitPlugins", "job_submit.lua"), n.script("CliFilterPlugins", "cli_filter.lua")
			onController := n.settings.isController() // job_submit.lua belongs on slurmctld's host
			n.judgeScript(r, submit, onController, "--gres=vgpu:N is not turned into shares")
			if n.slurmPlaces() {
				n.judgeScript(r, filter, true, "srun --gres=vgpu:N inside a job finds no shares")
			} else { // jobs request no shards
				r.fail(filter.active && filter.ours, "take lua out of CliFilterPlugins in slurm.conf; docs/placement.md",
					"cli_filter.lua asks for shards, and gresd places: srun --gres=vgpu:N finds none")
			}
			// As job_submit.lua looks for it.
			_, err := os.Stat(filepath.Join(n.settings.dir(), "vgpu_cards.lua"))
			_, shared := os.Stat("/etc/slurm/vgpu_cards.lua")
			r.warn(onController && err != nil && shared != nil, "write the memory of your cards into vgpu_cards.lua there: package slurm-vgpu-controller, or "+examples+"/slurm",
				"%v: memory in percent cannot be checked at submit", err)
			return "job_submit and cli_filter are active"
		},
	},
	{
		name: "plugstack", question: "Is vgpu.so loaded, is it there, and does it look where gresd writes?", look: lookPlugin,
		remedy: "write into plugstack.conf: optional vgpu.so; see " + examples + "/slurm/plugstack.conf",
		judge: func(n *node, r *results) string {
			r.fail(len(n.plugin) == 0, "", "%s does not name vgpu.so: no --vgpu options, and limits hold for programs only that cooperate", n.plugstack)
			if len(n.plugin) == 0 {
				return ""
			}
			r.warn(n.plugin[0] == "required", "optional vgpu.so", "vgpu.so is required, want optional: under a release of Slurm that it was not built for, slurmd stops")
			err := n.checkPlugin(n.plugin[1])
			r.fail(err != nil,
				"write the full path of vgpu.so into plugstack.conf; if it is nowhere or not root's alone, reinstall slurm-vgpu (or make install plugindir=the folder that scontrol show config names as PluginDir)",
				"%v", err)
			set := map[string]string{"run_dir": "/run/vgpu", "enforce": "namespace"}
			for _, word := range n.plugin[2:] {
				name, value, _ := strings.Cut(word, "=")
				set[name] = value
			}
			r.warn(set["enforce"] != "namespace", "enforce=namespace, or leave it out",
				"enforce=%s, want namespace: limits hold for programs only that cooperate", set["enforce"])
			r.fail(set["run_dir"] != n.cfg.Paths.RunDir, "run_dir=%[2]s on the line of plugstack.conf",
				"the plugin looks for grants in %s, gresd writes them to %s", set["run_dir"], n.cfg.Paths.RunDir)
			return n.plugstack + " loads vgpu.so"
		},
	},
	{
		name: "gres.conf", question: "Does gres.conf agree with the driver: cards, order, types, shards?", look: lookGresConf, remedy: reload,
		judge: func(n *node, r *results) string {
			path := filepath.Join(n.settings.dir(), "gres.conf")
			n.gresConf().compare(r, path, n.gres)
			return path + " and the driver agree"
		},
	},
	{
		name: "cgroup", question: "Are processes tracked by cgroup, and cards confined?", look: lookSettings,
		judge: func(n *node, r *results) string {
			r.warn(n.settings.get("ProctrackType") != "proctrack/cgroup", "ProctrackType=proctrack/cgroup in slurm.conf",
				"ProctrackType is %q, want proctrack/cgroup: an orphan's job is known by its environment only", n.settings.get("ProctrackType"))
			r.warn(!n.settings.has("TaskPlugin", "task/cgroup"), "TaskPlugin=task/cgroup,task/affinity in slurm.conf",
				"TaskPlugin is %q and lacks task/cgroup: jobs can open every card", n.settings.get("TaskPlugin"))
			set, _ := slurm.ReadConf(filepath.Join(n.settings.dir(), "cgroup.conf")) // without the file, nothing is set
			r.warn(!strings.EqualFold(set["constraindevices"], "yes"), "ConstrainDevices=yes in cgroup.conf", "ConstrainDevices is not set, want yes: jobs can open every card")
			_, v2 := os.Stat("/sys/fs/cgroup/cgroup.controllers")
			_, v1 := os.Stat("/sys/fs/cgroup/devices")
			r.warn(v1 != nil && v2 != nil, "mount -t cgroup2 none /sys/fs/cgroup, or boot with systemd", "no cgroups (v1 devices or v2) at /sys/fs/cgroup")
			return "processes are tracked by cgroup, cards confined"
		},
	},
}
