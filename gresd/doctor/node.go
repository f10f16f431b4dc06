// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func checkConfig(_ context.Context, n *node, tell func(Status, string, string)) {
	cfg, err := config.Load(n.Config)
	n.cfg = cfg
	switch {
	case err != nil:
		n.cfg = config.Default()
		tell(Fail, err.Error(), "vgpuctl check-config "+n.Config)
	case cfg.Path == "":
		tell(Warn, n.Config+" is not there: the defaults are in force", "install -D -m 644 /usr/share/doc/slurm-vgpu/examples/vgpu.toml "+n.Config)
	default:
		tell(Pass, cfg.Path, "")
	}
	for _, warning := range cfg.Warnings {
		tell(Warn, warning, "change this line, then: systemctl reload gresd")
	}
}

func checkPreload(_ context.Context, n *node, tell func(Status, string, string)) {
	path := n.cfg.Paths.Preload()
	text, err := os.ReadFile(path)
	switch {
	case err != nil:
		tell(Fail, err.Error(), "systemctl restart gresd: it writes this file when it starts")
	case !slices.Contains(strings.Fields(string(text)), n.cfg.Paths.Library):
		tell(Fail, fmt.Sprintf("%s does not name %s", path, n.cfg.Paths.Library), "systemctl restart gresd: it writes this file when it starts")
	default:
		info, err := os.Lstat(grant.HostPreload)
		if err != nil || !info.Mode().IsRegular() {
			tell(Fail, grant.HostPreload+" is no file: the list cannot be bound over it in tasks", "touch "+grant.HostPreload)
			return
		}
		tell(Pass, path+" names the library", "")
	}
}

func checkGresd(ctx context.Context, n *node, tell func(Status, string, string)) {
	client := wire.Client{Socket: n.cfg.Paths.Socket(), Timeout: 5 * time.Second}
	rep, err := client.Do(ctx, wire.Request{Op: wire.OpStatus})
	if err != nil || rep.Status == nil {
		tell(Fail, fmt.Sprintf("no answer: %v", err), "systemctl status gresd; journalctl -u gresd")
		return
	}
	st, well := rep.Status, true
	n.gresd = st
	say := func(s Status, message, remedy string) { well = false; tell(s, message, remedy) }
	if !st.Ready {
		say(Warn, "still starting: it waits for slurmctld", "scontrol ping; journalctl -u gresd")
	}
	if st.Version != n.Version {
		say(Warn, fmt.Sprintf("gresd is %s, vgpuctl is %s", st.Version, n.Version), "systemctl restart gresd, after an upgrade of both")
	}
	for _, problem := range st.Problems {
		if problem == st.SlurmProblem {
			say(Fail, problem, "the path in vgpu.toml, and systemctl restart gresd; scontrol ping")
			continue
		}
		say(Warn, problem, "vgpuctl status; docs/troubleshooting.md")
	}
	if n.cards != nil {
		if list, err := n.cards.Cards(); err == nil && !sameCards(list, st.Cards) {
			say(Fail, fmt.Sprintf("it knows %d cards, the driver %d, or others", len(st.Cards), len(list)), "systemctl restart gresd")
		}
	}
	for _, c := range st.Cards {
		if !c.Healthy {
			say(Warn, fmt.Sprintf("card %d is out: %s", c.Index, c.Why), "docs/troubleshooting.md, sick cards; vgpuctl uncordon "+fmt.Sprint(c.Index))
		}
	}
	if well {
		tell(Pass, fmt.Sprintf("%s answers, jobs %d", st.Version, st.Jobs), "")
	}
}

func checkSlices(_ context.Context, n *node, tell func(Status, string, string)) {
	if n.gresd == nil {
		tell(Skip, "no answer of gresd", "")
		return
	}
	obeyed := 0
	for _, c := range n.gresd.Cards {
		switch {
		case c.Slices == string(probe.Ignored):
			tell(Warn, fmt.Sprintf("card %d does not obey time slices: its jobs take turns", c.Index), "nothing: shares hold, with some loss; another driver may obey (docs/troubleshooting.md)")
		case c.Slices == string(probe.Obeyed):
			obeyed++
		default:
			tell(Skip, fmt.Sprintf("card %d: not tested: %s", c.Index, cmp.Or(c.SlicesWhy, "not yet")), "")
		}
	}
	if obeyed > 0 || len(n.gresd.Cards) == 0 {
		tell(Pass, fmt.Sprintf("cards that obey time slices: %d", obeyed), "")
	}
}

func sameCards(list []gpu.Card, told []wire.Card) bool {
	var a, b []string
	for _, c := range list {
		a = append(a, string(c.UUID))
	}
	for _, c := range told {
		b = append(b, c.UUID)
	}
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

func checkSocket(_ context.Context, n *node, tell func(Status, string, string)) {
	path := n.cfg.Paths.Socket()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		tell(Fail, fmt.Sprintf("%s: %v", path, err), "systemctl start gresd")
		return
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		tell(Fail, path+": not a socket", "remove it; systemctl restart gresd")
	case st.Uid != 0:
		tell(Fail, fmt.Sprintf("%s: owned by user %d: whoever that is answers in gresd's place", path, st.Uid), "find out who; systemctl restart gresd")
	case st.Mode&0o666 != 0o666:
		tell(Fail, fmt.Sprintf("%s: mode %04o: users' processes cannot connect", path, st.Mode&0o7777), "systemctl restart gresd")
	default:
		for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
			if err := unix.Stat(dir, &st); err != nil || st.Mode&0o001 == 0 {
				tell(Fail, fmt.Sprintf("%s: mode %04o: users cannot reach the socket in it", dir, st.Mode&0o7777), "chmod o+x "+dir)
				return
			}
			if st.Mode&0o002 != 0 && st.Mode&unix.S_ISVTX == 0 {
				tell(Fail, fmt.Sprintf("%s: mode %04o: everybody may replace what is in it", dir, st.Mode&0o7777), "chmod o-w "+dir)
				return
			}
			if dir == "/" {
				break
			}
		}
		tell(Pass, path+": root's, and users may connect", "")
	}
}

// Room that gresd needs: a job's folder has two files of 2 MiB at most on disk, most
// of it holes; the ledger is small, but must never be cut.
const (
	leastRun   = 16 * gpu.MiB
	leastState = 16 * gpu.MiB
)

func checkSpace(_ context.Context, n *node, tell func(Status, string, string)) {
	well := true
	look := func(dir string, denied Status, judge func(string, unix.Statfs_t) (Status, string, string)) gpu.Bytes {
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			s, err := Fail, fmt.Errorf("%s: %w", dir, err)
			if errors.Is(err, fs.ErrPermission) {
				s = denied
			}
			tell(s, err.Error(), "systemctl start gresd: it makes this folder")
			well = false
		} else if s, message, remedy := judge(dir, st); s != Pass {
			tell(s, message, remedy)
			well = false
		}
		return free(st)
	}
	run, state := n.cfg.Paths.RunDir, n.cfg.Paths.StateDir
	inRun, inState := look(run, Fail, judgeRun), look(state, Skip, judgeState) // which users may not read
	if well {
		tell(Pass, fmt.Sprintf("%s free in %s, %s in %s", inRun, run, inState, state), "")
	}
}

func free(st unix.Statfs_t) gpu.Bytes {
	bytes := gpu.Bytes(st.Bavail * uint64(st.Bsize))
	if bytes > gpu.GiB {
		return bytes / gpu.GiB * gpu.GiB
	}
	return bytes / gpu.MiB * gpu.MiB
}

func judgeRun(path string, st unix.Statfs_t) (Status, string, string) {
	switch {
	case free(st) < leastRun:
		return Fail, fmt.Sprintf("%s: %s free, want at least %s: jobs get no grant", path, free(st), leastRun), "make room: df " + path
	case st.Files > 0 && st.Ffree < 1000:
		return Fail, fmt.Sprintf("%s: room for %d files, want at least 1000", path, st.Ffree), "df -i " + path
	case st.Type != unix.TMPFS_MAGIC && st.Type != unix.RAMFS_MAGIC:
		return Warn, path + " is not on a tmpfs: counting costs disk writes, and old grants outlive a restart", "[paths] run_dir below /run"
	}
	return Pass, "", ""
}

func judgeState(path string, st unix.Statfs_t) (Status, string, string) {
	switch {
	case free(st) < leastState:
		return Fail, fmt.Sprintf("%s: %s free, want at least %s: the ledger cannot be written", path, free(st), leastState), "make room: df " + path
	case st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC:
		return Warn, path + " is on a tmpfs: the ledger is lost with the node's memory", "[paths] state_dir on a disk"
	}
	return Pass, "", ""
}

func checkClock(_ context.Context, _ *node, tell func(Status, string, string)) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		tell(Skip, err.Error(), "")
		return
	}
	tell(judgeClock(state, t.Status, time.Now()))
}

// A clock that is wrong breaks munge, and with it every question to slurmctld.
func judgeClock(state int, status int32, now time.Time) (Status, string, string) {
	switch {
	case now.Year() < 2025:
		return Fail, "it is " + now.UTC().Format(time.RFC3339) + " here", "chronyc makestep, or timedatectl set-ntp true"
	case state == unix.TIME_ERROR || status&unix.STA_UNSYNC != 0:
		return Warn, "not synchronized: munge refuses messages that are 5 minutes off", "systemctl enable --now chrony, or timedatectl set-ntp true"
	}
	return Pass, "synchronized", ""
}
