// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
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

// checks are in the order of the report. A check can use the facts of the checks before it.
var checks = []check{
	{
		name: "config", question: "Can vgpu.toml be read?", look: lookConfig, remedy: "correct the key that the message names; vgpuctl check-config FILE prints the same",
		rules: []rule{
			{
				Warn, "%s is not there: the defaults are in force", "install -D -m 644 " + examples + "/vgpu.toml %[1]s",
				func(n *node) faults { return when(n.cfg.Path == "", n.Config) },
			},
			{Warn, "%s", "change this line, then: systemctl reload gresd", func(n *node) faults {
				return each(n.cfg.Warnings, func(key string) faults { return when(true, key) })
			}},
		},
		pass: func(n *node) string { return n.cfg.Path },
	},
	{
		name: "driver", question: "Does the driver answer, and were its version and its CUDA tested (coverage.md)?", look: lookDriver,
		remedy: "install the NVIDIA driver, load its module (nvidia-smi shows whether it works), or set [nvml] library",
		rules: []rule{
			{Warn, "its version is unknown: %v", "nvidia-smi", func(n *node) faults { return when(n.versionErr != nil, n.versionErr) }},
			{
				Warn, "driver %q, CUDA %s: not a version, want a number like 580.95.05", "docs/coverage.md lists the tested versions",
				func(n *node) faults {
					return when(n.versionErr == nil && major(n.version.Driver) == 0, n.version.Driver, n.version.CUDA)
				},
			},
			{
				Fail, "driver %s, CUDA %s: older than %d", "install a driver from %[3]d on",
				func(n *node) faults {
					driver := major(n.version.Driver)
					return when(driver != 0 && driver < oldestDriver, n.version.Driver, n.version.CUDA, oldestDriver)
				},
			},
			{
				Warn, "driver %s, CUDA %s: tested up to CUDA %d, and the library may not know all functions of a later one", "docs/coverage.md; look for a newer slurm-vgpu",
				func(n *node) faults {
					return when(major(n.version.CUDA) > ranCUDA, n.version.Driver, n.version.CUDA, ranCUDA)
				},
			},
			{
				Warn, "driver %s, CUDA %s: meant to work, but only %d was run by us", "once on this node: make gpu-check in a built checkout, or ./gpu-check in the folder that make gpu-check-bundle makes",
				func(n *node) faults {
					driver := major(n.version.Driver)
					return when(driver >= oldestDriver && driver != ranDriver && major(n.version.CUDA) <= ranCUDA, n.version.Driver, n.version.CUDA, ranDriver)
				},
			},
		},
		pass: func(n *node) string { return fmt.Sprintf("driver %s, CUDA %s", n.version.Driver, n.version.CUDA) },
	},
	{
		name: "cards", question: "Can each card be read, has it its device files, and has each MIG instance its GPU instance to itself?", look: lookCards, always: true,
		rules: []rule{
			{Fail, "%v", "nvidia-smi; reset the card (nvidia-smi -r) or restart the node", func(n *node) faults { return when(n.listErr != nil, n.listErr) }},
			{Fail, "the driver knows no card, want at least one", "lspci | grep -i nvidia; dmesg", func(n *node) faults { return when(n.listErr == nil && len(n.list) == 0) }},
			{
				Warn, "%[1]s of card %[2]d is not there", "nvidia-modprobe -u -c %[3]d",
				func(n *node) faults {
					return each(n.list, func(c gpu.Card) faults { return when(!isDevice(c.Files()[0]), c.Files()[0], c.Index, c.Minor) })
				},
			},
			{Warn, "%[1]s of MIG instance %[2]d is not there", "nvidia-modprobe -f %[3]s", func(n *node) (f faults) {
				for _, c := range n.list {
					for i, file := range c.Files()[1:] {
						f = append(f, when(!isDevice(file), file, c.Index, []string{c.Instance.CapPath(c.Minor), c.Instance.ComputeCapPath(c.Minor)}[i])...)
					}
				}
				return f
			}},
			{
				Warn, "card %d is one of several compute instances that share a GPU instance and its memory: gresd does not share it",
				"create one compute instance in each GPU instance that gresd is to share",
				func(n *node) faults {
					return each(n.list, func(c gpu.Card) faults { return when(c.MIG && c.IsInstance(), c.Index) })
				},
			},
			{
				Warn, "card %d is in MIG mode and has no instances: nothing can run on it", "nvidia-smi mig -cgi PROFILES -C, or nvidia-smi -mig 0; then gresd gres-conf",
				func(n *node) faults {
					return each(n.list, func(c gpu.Card) faults { return when(c.MIG && !c.IsInstance(), c.Index) })
				},
			},
		},
		pass: func(n *node) string {
			var names []string
			for _, c := range n.list {
				names = append(names, fmt.Sprintf("%d: %s", c.Index, c.Type))
			}
			return fmt.Sprintf("%d of type %s", len(names), strings.Join(names, ", "))
		},
	},
	{
		name: "limits", question: "Does the library alone enforce memory limits, or the driver, too ([memory] driver_limits)?", look: needsDriver,
		rules: []rule{
			{
				Warn, "the library alone enforces memory limits: [memory] driver_limits is true, but this driver has no limits", "install a driver from r615 on, or set driver_limits = false",
				func(n *node) faults { return when(n.cfg.Memory.DriverLimits && !n.cards.HasLimits()) },
			},
		},
		pass: func(n *node) string {
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
		rules: []rule{
			{Fail, "%s cannot be tried: %v", "", func(n *node) faults { return when(n.probeErr != nil, n.cfg.Paths.Library, n.probeErr) }},
			{
				Fail, "%s does not answer: a program with a limit of %s sees %s", "",
				func(n *node) faults {
					return when(n.probeErr == nil && n.probed.ByName != ProbeLimit, n.cfg.Paths.Library, ProbeLimit, n.probed.ByName)
				},
			},
			{
				Fail, "%s does not answer cuGetProcAddress: a program with a limit of %s sees %s", "",
				func(n *node) faults {
					return when(n.probeErr == nil && n.probed.ByAddress != 0 && n.probed.ByAddress != ProbeLimit, n.cfg.Paths.Library, ProbeLimit, n.probed.ByAddress)
				},
			},
			{
				Warn, "%s is older than the driver, by the caches of jobs %s: their programs asked for functions that have a newer version in the driver",
				"update slurm-vgpu; vgpuctl inspect /run/vgpu/jobs/JOB/cache shows which processes. A job's user can write its cache: if one job alone is named, ask that user",
				func(n *node) faults {
					return when(len(n.unknownSymbols) > 0, n.cfg.Paths.Library, strings.Join(n.unknownSymbols, ", "))
				},
			},
		},
		pass: func(n *node) string { return n.cfg.Paths.Library + " loads, and its hooks answer" },
	},
	{
		name: "preload", question: "Does the preload list of tasks name the library, and can it be bound over /etc/ld.so.preload?", look: lookPreload,
		remedy: restart + ": it writes this file when it starts",
		rules: []rule{
			{Fail, "%s does not name %s", "", func(n *node) faults {
				return when(!slices.Contains(n.preload, n.cfg.Paths.Library), n.cfg.Paths.Preload(), n.cfg.Paths.Library)
			}},
			{Fail, "%s is no file: the list cannot be bound over it in tasks", "touch %[1]s", func(n *node) faults {
				info, err := os.Lstat(grant.HostPreload)
				return when(err != nil || !info.Mode().IsRegular(), grant.HostPreload)
			}},
		},
		pass: func(n *node) string { return n.cfg.Paths.Preload() + " names the library" },
	},
	{
		name: "gresd", question: "Does gresd answer, has it started, is it of this version, does it know the driver's cards, and has it no problems?", look: lookGresd,
		remedy: "systemctl status gresd; journalctl -u gresd",
		rules: []rule{
			{Warn, "still starting: it waits for slurmctld", "scontrol ping; journalctl -u gresd", func(n *node) faults { return when(!n.gresd.Ready) }},
			{Warn, "gresd is %s, vgpuctl is %s", restart + ", after an upgrade of both", func(n *node) faults { return when(n.gresd.Version != n.Version, n.gresd.Version, n.Version) }},
			{Fail, "%s", "the path in vgpu.toml, and " + restart + "; scontrol ping", func(n *node) faults { return when(n.gresd.SlurmProblem != "", n.gresd.SlurmProblem) }},
			{
				Warn, "%s", "vgpuctl status; docs/troubleshooting.md",
				func(n *node) faults {
					return each(n.gresd.Problems, func(problem string) faults { return when(problem != n.gresd.SlurmProblem, problem) })
				},
			},
			{
				Fail, "gresd knows %d cards, the driver %d, or others", restart,
				func(n *node) faults {
					return when(n.cards != nil && n.listErr == nil && !n.sameCards(), len(n.gresd.Cards), len(n.list))
				},
			},
			{
				Warn, "card %d is out: %s", "docs/troubleshooting.md, sick cards; vgpuctl uncordon %[1]d",
				func(n *node) faults {
					return each(n.gresd.Cards, func(c wire.Card) faults { return when(!c.Healthy, c.Index, c.Why) })
				},
			},
		},
		pass: func(n *node) string { return fmt.Sprintf("%s answers, jobs %d", n.gresd.Version, n.gresd.Jobs) },
	},
	{
		name: "slices", question: "Does each card obey time slices, by gresd's test of it, or why was it not tested?", look: lookSlices,
		rules: []rule{
			{
				Warn, "card %d does not obey time slices: its jobs take turns", "nothing: shares hold, with some loss; another driver may obey (docs/troubleshooting.md)",
				func(n *node) faults {
					return each(n.gresd.Cards, func(c wire.Card) faults { return when(c.Slices == string(probe.Ignored), c.Index) })
				},
			},
			{Skip, "card %d: not tested: %s", "", func(n *node) faults {
				return each(n.gresd.Cards, func(c wire.Card) faults {
					return when(c.Slices != string(probe.Ignored) && c.Slices != string(probe.Obeyed), c.Index, cmp.Or(c.SlicesWhy, "not yet"))
				})
			}},
		},
		pass: func(n *node) string { return fmt.Sprintf("cards that obey time slices: %d", len(n.gresd.Cards)) },
	},
	{
		name: "socket", question: "Is the socket root's, and can users reach it?", look: lookSocket, remedy: "systemctl start gresd",
		rules: []rule{
			{Fail, "%s: not a socket", "remove it; " + restart, func(n *node) faults { return when(n.socket.Mode&unix.S_IFMT != unix.S_IFSOCK, n.cfg.Paths.Socket()) }},
			{
				Fail, "%s: owned by user %d, want root: its owner answers in gresd's place", "find out who; " + restart,
				func(n *node) faults { return when(n.socket.Uid != 0, n.cfg.Paths.Socket(), n.socket.Uid) },
			},
			{
				Fail, "%s: mode %04o, want 0666: users' processes cannot connect", restart,
				func(n *node) faults {
					return when(n.socket.Mode&0o666 != 0o666, n.cfg.Paths.Socket(), n.socket.Mode&0o7777)
				},
			},
			{Fail, "%s: mode %04o: users cannot reach the socket in it", "chmod o+x %[1]s", func(n *node) faults { return n.foldersWith(0o001, 0) }},
			{Fail, "%s: mode %04o: each user can replace what is in it", "chmod o-w %[1]s", func(n *node) faults { return n.foldersWith(unix.S_ISVTX, 0o002) }},
		},
		pass: func(n *node) string { return n.cfg.Paths.Socket() + ": root's, and users may connect" },
	},
	{
		name: "space", question: "Is run_dir a tmpfs with room, and state_dir a disk with room?", look: lookSpace, remedy: "systemctl start gresd: it makes this folder",
		rules: []rule{
			{Skip, "%v", "", func(n *node) faults { return when(errors.Is(n.stateErr, fs.ErrPermission), n.stateErr) }},
			{Fail, "%v", "", func(n *node) faults {
				return when(n.stateErr != nil && !errors.Is(n.stateErr, fs.ErrPermission), n.stateErr)
			}},
			{Fail, "%s: %s free, want at least %s: jobs get no grant", "make room: df %[1]s", func(n *node) faults { return when(free(n.run) < leastRoom, n.cfg.Paths.RunDir, free(n.run), leastRoom) }},
			{
				Fail, "%s: room for %d files, want at least %d", "df -i %[1]s",
				func(n *node) faults {
					return when(n.run.Files > 0 && n.run.Ffree < leastFiles, n.cfg.Paths.RunDir, n.run.Ffree, leastFiles)
				},
			},
			{
				Warn, "%s is not on a tmpfs: counting costs disk writes, and old grants outlive a restart", "[paths] run_dir below /run",
				func(n *node) faults { return when(!inMemory(n.run), n.cfg.Paths.RunDir) },
			},
			{
				Fail, "%s: %s free, want at least %s: the ledger cannot be written", "make room: df %[1]s",
				func(n *node) faults {
					return when(n.stateErr == nil && free(n.state) < leastRoom, n.cfg.Paths.StateDir, free(n.state), leastRoom)
				},
			},
			{
				Warn, "%s is on a tmpfs: the ledger is lost with the node's memory", "[paths] state_dir on a disk",
				func(n *node) faults { return when(n.stateErr == nil && inMemory(n.state), n.cfg.Paths.StateDir) },
			},
		},
		pass: func(n *node) string {
			return fmt.Sprintf("%s free in %s, %s in %s", free(n.run), n.cfg.Paths.RunDir, free(n.state), n.cfg.Paths.StateDir)
		},
	},
	{
		// A wrong clock breaks munge, and with it every question to slurmctld.
		name: "clock", question: "Is the clock right, and synchronized?", look: lookClock,
		rules: []rule{
			{Fail, "the clock says %s, want a time after 2024", "chronyc makestep, or timedatectl set-ntp true", func(n *node) faults { return when(n.now.Year() < 2025, n.now.UTC().Format("2006-01-02T15:04:05Z")) }},
			{
				Warn, "not synchronized: munge refuses messages that are 5 minutes off", "systemctl enable --now chrony, or timedatectl set-ntp true",
				func(n *node) faults { return when(!n.synchronized && n.now.Year() >= 2025) },
			},
		},
		pass: func(*node) string { return "synchronized" },
	},
	{
		name: "slurm", question: "Does slurmctld answer, was its release tested, and do its settings and the node's Gres= and state allow shares?", look: lookSlurm, slow: true,
		remedy: "is slurmctld running, munge too? scontrol ping; munge -n | unmunge",
		rules: []rule{
			{Fail, "Slurm %s is older than %s", "upgrade Slurm", func(n *node) faults { return when(n.release() < oldestSlurm, n.release(), oldestSlurm) }},
			{
				Warn, "Slurm %s is newer than %s, the newest that the plugin was run on", "docs/slurm.md; look for a newer slurm-vgpu",
				func(n *node) faults { return when(n.release() > newestSlurm, n.release(), newestSlurm) },
			},
			{
				Warn, "Slurm %s: meant to work, but not run by us", "docs/slurm.md lists the tested releases",
				func(n *node) faults {
					return when(n.release() > oldestSlurm && n.release() < newestSlurm && !slices.Contains(ranSlurm, n.release()), n.release())
				},
			},
			{
				Fail, "SelectType is %q, want select/cons_tres: shares are not kept apart", "SelectType=select/cons_tres in slurm.conf",
				func(n *node) faults {
					return when(n.slurmPlaces() && n.slurm.get("SelectType") != "select/cons_tres", n.slurm.get("SelectType"))
				},
			},
			{
				Warn, "SelectTypeParameters has MULTIPLE_SHARING_GRES_PJ: slurmctld may split one share over cards, and gresd sends such a job back",
				"take it out of slurm.conf if no job uses --tres-per-task; docs/placement.md",
				func(n *node) faults {
					return when(n.slurmPlaces() && n.slurm.has("SelectTypeParameters", "MULTIPLE_SHARING_GRES_PJ"))
				},
			},
			{Fail, "GresTypes lacks %s, want gpu,shard,vgpu", "GresTypes=gpu,shard,vgpu in slurm.conf, and restart slurmctld", func(n *node) faults {
				return each([]string{"gpu", "vgpu", "shard"}, func(name string) faults {
					return when(!n.slurm.has("GresTypes", name) && (name != "shard" || n.slurmPlaces()), name)
				})
			}},
			{Warn, "%s is %d s, want %d or more: a job with a share is sent back when slurmctld does not answer at once", "%[1]s=%[3]d or more in slurm.conf", func(n *node) faults {
				return each([]string{"PrologEpilogTimeout", "PrologTimeout"}, func(name string) faults {
					seconds, _ := strconv.Atoi(n.slurm.get(name)) // slurm.NoTimeout is more
					return when(seconds > 0 && seconds < leastPrologTime, name, seconds, leastPrologTime)
				})
			}},
			{
				Warn, "JobRequeue is 0, want 1: a batch job that finds its card out of use fails", "JobRequeue=1 in slurm.conf, or sbatch --requeue",
				func(n *node) faults { return when(n.slurm.get("JobRequeue") == "0") },
			},
			{
				Warn, "AccountingStorageEnforce lacks associations: users name any account, and the engine auto trusts users of one account",
				`AccountingStorageEnforce=associations in slurm.conf, or [mps] trust = "user"`,
				func(n *node) faults {
					return when(n.cfg.MPS.DefaultEngine == gpu.Auto && n.cfg.MPS.Trust == config.TrustAccount && !n.slurm.has("AccountingStorageEnforce", "associations"))
				},
			},
			{Fail, "%v", "a NodeName= line in slurm.conf for this host", func(n *node) faults { return when(n.recordErr != nil, n.recordErr) }},
			{Warn, "node %s is %s: %s", "scontrol update node=%[1]s state=resume, when the reason is gone", func(n *node) faults {
				return when(slices.ContainsFunc([]string{"DRAIN", "DOWN", "FAIL", "INVAL", "NOT_RESPONDING"}, func(bad string) bool { return strings.Contains(n.record.State, bad) }),
					n.name, n.record.State, n.record.Reason)
			}},
			{Fail, "node %s has Gres=%s, its cards are %s", reload, func(n *node) faults {
				want := n.gresConf().gres()
				return when(n.cards != nil && n.listErr == nil && n.recordErr == nil && !sameGres(want, n.record.Gres), n.name, n.record.Gres, want)
			}},
		},
		pass: func(n *node) string {
			return "Slurm " + n.slurm.get("SLURM_VERSION") + ", node " + n.name + " has the shares"
		},
	},
	{
		name: "hooks", question: "Are Prolog, Epilog, TaskProlog and HealthCheckProgram vgpu-prolog, or do they call it?", look: lookSettings,
		remedy: "set it to /usr/sbin/vgpu-prolog in slurm.conf, or call vgpu-prolog from it and pass its exit code on",
		rules: []rule{
			{Fail, "%s is not set", "", func(n *node) faults { return n.unsetHooks("Prolog", "Epilog") }},
			{Fail, "%s: %v", "", func(n *node) faults { return n.brokenHooks(false, "Prolog", "Epilog") }},
			{Warn, "%s: no call of vgpu-prolog is seen in %s", "", func(n *node) faults {
				return n.brokenHooks(true, "Prolog", "Epilog", "TaskProlog", "HealthCheckProgram")
			}},
			{Warn, "%s is not set", "", func(n *node) faults { return n.unsetHooks("TaskProlog", "HealthCheckProgram") }},
			{Warn, "%s: %v", "", func(n *node) faults { return n.brokenHooks(false, "TaskProlog", "HealthCheckProgram") }},
		},
		pass: func(*node) string { return "Prolog, Epilog, TaskProlog and HealthCheckProgram are set" },
	},
	{
		name: "lua", question: "Is job_submit.lua there and active, and cli_filter.lua, unless gresd places?", look: lookSettings,
		remedy: "ln -s /usr/share/slurm-vgpu/cli_filter.lua (and, on slurmctld's host, job_submit.lua) into the folder of slurm.conf, or load it from the site's own: see its head",
		rules: []rule{
			{
				Fail, "%s lacks lua: %s", "%[1]s=lua in slurm.conf, and restart slurmctld",
				func(n *node) faults {
					return each(n.scripts(), func(s script) faults { return when(!s.active, s.setting, s.does) })
				},
			},
			{Fail, "%v: %s", "", func(n *node) faults {
				// job_submit.lua belongs on slurmctld's host.
				return each(n.scripts(), func(s script) faults {
					return when(s.active && s.err != nil && (s.file == filterScript || n.settings.isController()), s.err, s.does)
				})
			}},
			{
				Fail, "%s knows nothing of vgpu: %s", "",
				func(n *node) faults {
					return each(n.scripts(), func(s script) faults { return when(s.active && s.err == nil && !s.ours, s.path, s.does) })
				},
			},
			{Fail, "%s asks for shards, and gresd places: srun --gres=vgpu:N finds none", "take lua out of CliFilterPlugins in slurm.conf; docs/placement.md", func(n *node) faults {
				filter := n.script("CliFilterPlugins", filterScript, "")
				return when(!n.slurmPlaces() && filter.active && filter.ours, filterScript)
			}},
			{
				Warn, "%v: memory in percent cannot be checked at submit", "write the memory of your cards into vgpu_cards.lua there: package slurm-vgpu-controller, or " + examples + "/slurm",
				func(n *node) faults {
					// As job_submit.lua looks for it.
					_, err := os.Stat(filepath.Join(n.settings.dir(), "vgpu_cards.lua"))
					_, shared := os.Stat("/etc/slurm/vgpu_cards.lua")
					return when(n.settings.isController() && err != nil && shared != nil, err)
				},
			},
		},
		pass: func(*node) string { return "job_submit and cli_filter are active" },
	},
	{
		name: "plugstack", question: "Is vgpu.so loaded, is it there, and does it look where gresd writes?", look: lookPlugin,
		remedy: "write into plugstack.conf: optional vgpu.so; see " + examples + "/slurm/plugstack.conf",
		rules: []rule{
			{Fail, "%s does not name vgpu.so: no --vgpu options, and limits hold for programs only that cooperate", "", func(n *node) faults { return when(len(n.plugin) == 0, n.plugstack) }},
			{Warn, "vgpu.so is required, want optional: under a release of Slurm that it was not built for, slurmd stops", "optional vgpu.so", func(n *node) faults { return when(len(n.plugin) > 0 && n.plugin[0] == "required") }},
			{
				Fail, "%v", "write the full path of vgpu.so into plugstack.conf; if it is nowhere or not root's alone, reinstall slurm-vgpu (or make install plugindir=the folder that scontrol show config names as PluginDir)",
				func(n *node) faults { return when(n.pluginErr != nil, n.pluginErr) },
			},
			{
				Warn, "enforce=%s, want namespace: limits hold for programs only that cooperate", "enforce=namespace, or leave it out",
				func(n *node) faults { return when(n.enforce != "namespace", n.enforce) },
			},
			{
				Fail, "the plugin looks for grants in %s, gresd writes them to %s", "run_dir=%[2]s on the line of plugstack.conf",
				func(n *node) faults {
					return when(len(n.plugin) > 0 && n.grants != n.cfg.Paths.RunDir, n.grants, n.cfg.Paths.RunDir)
				},
			},
		},
		pass: func(n *node) string { return n.plugstack + " loads vgpu.so" },
	},
	{
		name: "gres.conf", question: "Does gres.conf agree with the driver: cards, order, types, shards?", look: lookGresConf, remedy: reload,
		rules: []rule{
			{Fail, "%s: AutoDetect is %s, want off: its cards have no shares", "", func(n *node) faults { return n.gres.automatic }},
			{Fail, "%s: the cards are in the order %v, want the order of the device files, in which gresd counts them", "", func(n *node) faults { return n.gres.order }},
			{Fail, "%s: no Name=%s line with File= for %s", "", func(n *node) faults { return n.gres.missing }},
			{Fail, "%s: no Type= in the Name=%s line for %s, want %s: slurmctld forgets at a restart who uses it", "", func(n *node) faults { return n.gres.untyped }},
			{Fail, "%s: %d shards for %s, want %d", "", func(n *node) faults { return n.gres.count }},
			{Fail, "%s: a Name=%s line for %s: the driver has no such card", "", func(n *node) faults { return n.gres.unknown }},
		},
		pass: func(n *node) string { return filepath.Join(n.settings.dir(), "gres.conf") + " and the driver agree" },
	},
	{
		name: "cgroup", question: "Are processes tracked by cgroup, and cards confined?", look: lookSettings,
		rules: []rule{
			{
				Warn, "ProctrackType is %q, want proctrack/cgroup: an orphan's job is known by its environment only", "ProctrackType=proctrack/cgroup in slurm.conf",
				func(n *node) faults {
					return when(n.settings.get("ProctrackType") != "proctrack/cgroup", n.settings.get("ProctrackType"))
				},
			},
			{
				Warn, "TaskPlugin is %q and lacks task/cgroup: jobs can open every card", "TaskPlugin=task/cgroup,task/affinity in slurm.conf",
				func(n *node) faults {
					return when(!n.settings.has("TaskPlugin", "task/cgroup"), n.settings.get("TaskPlugin"))
				},
			},
			{Warn, "ConstrainDevices is not set, want yes: jobs can open every card", "ConstrainDevices=yes in cgroup.conf", func(n *node) faults {
				set, _ := slurm.ReadConf(filepath.Join(n.settings.dir(), "cgroup.conf")) // without the file, nothing is set
				return when(!strings.EqualFold(set["constraindevices"], "yes"))
			}},
			{Warn, "no cgroups (v1 devices or v2) at /sys/fs/cgroup", "mount -t cgroup2 none /sys/fs/cgroup, or boot with systemd", func(*node) faults {
				_, v2 := os.Stat("/sys/fs/cgroup/cgroup.controllers")
				_, v1 := os.Stat("/sys/fs/cgroup/devices")
				return when(v1 != nil && v2 != nil)
			}},
		},
		pass: func(*node) string { return "processes are tracked by cgroup, cards confined" },
	},
}
