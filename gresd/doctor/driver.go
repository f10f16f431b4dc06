// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/inventory"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// What docs/coverage.md and INSTALL.md say was run.
const (
	oldestDriver = 535 // meant to work from here on
	lookedAtCUDA = 13  // docs/coverage.md
)

var ranDrivers = []int{580}

func checkDriver(_ context.Context, n *node, tell func(Status, string, string)) {
	cards, err := inventory.Open(n.cfg.NVML.Library)
	if err != nil {
		tell(Fail, err.Error(), "install the NVIDIA driver, load its module (nvidia-smi shows whether it works), or set [nvml] library")
		return
	}
	n.cards = cards
	v, err := cards.Versions()
	if err != nil {
		tell(Warn, "its version is not known: "+err.Error(), "nvidia-smi")
		return
	}
	tell(judgeDriver(v))
}

func judgeDriver(v inventory.Versions) (Status, string, string) {
	text := fmt.Sprintf("driver %s, CUDA %s", v.Driver, v.CUDA)
	driver, cuda := major(v.Driver), major(v.CUDA)
	switch {
	case driver == 0:
		return Warn, text + ": not a version that is known", "see docs/coverage.md for what was looked at"
	case driver < oldestDriver:
		return Fail, fmt.Sprintf("%s: older than %d", text, oldestDriver), fmt.Sprintf("install a driver from %d on", oldestDriver)
	case cuda > lookedAtCUDA:
		return Warn, fmt.Sprintf("%s: CUDA %d may have functions that the library does not know", text, cuda), "see docs/coverage.md; look for a newer slurm-vgpu"
	case !slices.Contains(ranDrivers, driver):
		return Warn, text + ": meant to work, not run by us", "once on this node: make gpu-check in a built checkout, or ./gpu-check in the folder that make gpu-check-bundle makes"
	}
	return Pass, text, ""
}

// major is the first number of "580.95.05"; 0 when there is none.
func major(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, _ := strconv.ParseUint(first, 10, 16)
	return int(n)
}

func checkCards(_ context.Context, n *node, tell func(Status, string, string)) {
	if n.cards == nil {
		tell(Skip, "no driver", "")
		return
	}
	list, err := n.cards.Cards()
	if err != nil {
		tell(Fail, err.Error(), "nvidia-smi; reset the card (nvidia-smi -r) or restart the node")
	}
	var names []string
	for _, c := range list {
		names = append(names, fmt.Sprintf("%d: %s", c.Index, c.Type))
		files := c.Files()
		if !isDevice(files[0]) {
			tell(Warn, files[0]+" of card "+fmt.Sprint(c.Index)+" is not there", "nvidia-modprobe -u -c "+fmt.Sprint(c.Minor))
		}
		for i, device := range files[1:] {
			if !isDevice(device) {
				capability := []string{c.Instance.CapPath(c.Minor), c.Instance.ComputeCapPath(c.Minor)}[i]
				tell(Warn, device+" of card "+fmt.Sprint(c.Index)+" is not there", "nvidia-modprobe -f "+capability)
			}
		}
		switch {
		case c.MIG && c.IsInstance():
			tell(Warn, fmt.Sprintf("card %d is one of several compute instances that share a GPU instance and its memory: gresd does not share it", c.Index),
				"one compute instance in each GPU instance, if it is to be shared by gresd")
		case c.MIG:
			tell(Warn, fmt.Sprintf("card %d is in MIG mode and has no instances: nothing can run on it", c.Index),
				"nvidia-smi mig -cgi PROFILES -C, or nvidia-smi -mig 0; then gresd gres-conf")
		}
	}
	switch {
	case len(list) == 0 && err == nil:
		tell(Fail, "the driver knows no card", "lspci | grep -i nvidia; dmesg")
	case len(list) == 1:
		tell(Pass, "1 card, "+names[0], "")
	case len(list) > 1:
		tell(Pass, fmt.Sprintf("%d cards, %s", len(list), strings.Join(names, ", ")), "")
	}
}

func checkLimits(_ context.Context, n *node, tell func(Status, string, string)) {
	if n.cards == nil {
		tell(Skip, "no driver", "")
		return
	}
	tell(judgeLimits(n.cfg.Memory.DriverLimits, n.cards.HasLimits()))
}

// judgeLimits says who holds the memory limits of jobs.
func judgeLimits(wanted, offered bool) (Status, string, string) {
	switch {
	case wanted && offered:
		return Pass, "the library holds memory limits, and the driver as well, for the cgroups of jobs", ""
	case wanted:
		return Warn, "the library alone holds memory limits: [memory] driver_limits wants the driver to, which cannot", "install a driver from r615 on, or set driver_limits = false"
	case offered:
		return Pass, "the library alone holds memory limits; the driver could as well ([memory] driver_limits)", ""
	}
	return Pass, "the library alone holds memory limits", ""
}

func isDevice(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode()&os.ModeDevice != 0
}

// Probed is what a child process with the library preloaded was told.
type Probed struct {
	ByName    gpu.Bytes `json:"by_name"`
	ByAddress gpu.Bytes `json:"by_address"`
}

// ProbeLimit is the limit that the child is given.
const ProbeLimit = 1 * gpu.GiB

func checkLibrary(ctx context.Context, n *node, tell func(Status, string, string)) {
	path := n.cfg.Paths.Library
	if err := trusted(path); err != nil {
		tell(Fail, err.Error(), "reinstall the package slurm-vgpu-node (or make install), or set [paths] library; root must own it and nobody else may write it")
		return
	}
	switch {
	case n.cards == nil:
		tell(Skip, "no driver to try it with", "")
		return
	case n.Probe == nil:
		tell(Skip, "not tried", "")
		return
	}
	got, err := n.Probe(ctx, path, probe.Library(n.cfg.NVML.Library))
	s, message, remedy := judgeLibrary(path, got, err)
	if s == Pass {
		s, message, remedy = judgeUnknown(path, message, unknownSymbols(n.cfg.Paths.RunDir))
	}
	tell(s, message, remedy)
}

func judgeUnknown(path, message string, jobs []string) (Status, string, string) {
	if len(jobs) == 0 {
		return Pass, message, ""
	}
	return Warn, fmt.Sprintf("%s is older than the driver, by the caches of jobs %s: their programs asked for functions that have a newer version in the driver", path, strings.Join(jobs, ", ")),
		"update slurm-vgpu; vgpuctl inspect /run/vgpu/jobs/JOB/cache shows which processes. A job's user can write its cache: if one job alone is named, ask that user"
}

// unknownSymbols returns the jobs with a process that asked for a function that has a newer version
// in the driver than its library knows. The user of a job can forge this.
func unknownSymbols(runDir string) (jobs []string) {
	caches, _ := filepath.Glob(filepath.Join(runDir, "jobs/*/cache"))
	for _, path := range caches {
		view, err := libvgpu.ReadCache(path)
		if err != nil {
			continue // of a job that ends, or one that has overwritten it
		}
		if slices.ContainsFunc(view.Slots, func(s libvgpu.SlotView) bool { return s.UnknownSymbols > 0 }) {
			jobs = append(jobs, filepath.Base(filepath.Dir(path)))
		}
	}
	return jobs
}

func judgeLibrary(path string, got Probed, err error) (Status, string, string) {
	const remedy = "install the packages (or make install) of one release; ldd of it shows what is missing"
	switch {
	case err != nil:
		return Fail, fmt.Sprintf("%s cannot be tried: %v", path, err), remedy
	case got.ByName != ProbeLimit:
		return Fail, fmt.Sprintf("%s does not answer: a program with a limit of %s is told %s", path, ProbeLimit, got.ByName), remedy
	case got.ByAddress != 0 && got.ByAddress != ProbeLimit:
		return Fail, fmt.Sprintf("%s does not answer cuGetProcAddress: a program with a limit of %s is told %s", path, ProbeLimit, got.ByAddress), remedy
	}
	return Pass, path + " loads, and its hooks answer", ""
}

// trusted says what is wrong with a file that every process of a job loads.
func trusted(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("%s: not a file", path)
	case st.Uid != 0:
		return fmt.Errorf("%s: owned by user %d, want root", path, st.Uid)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%s: mode %04o: others than root may write it", path, st.Mode&0o7777)
	case st.Mode&0o004 == 0:
		return fmt.Errorf("%s: mode %04o: users may not read it", path, st.Mode&0o7777)
	case st.Size == 0:
		return errors.New(path + ": empty")
	}
	return nil
}
