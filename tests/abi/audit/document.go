// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strings"
)

// Driver names what was looked at, for the document.
type Driver struct {
	Version string // 580.159.04
	CUDA    string // 13.0
}

var driverLine = regexp.MustCompile(`(?m)^Driver (\S+), CUDA (\S+)\.$`)

// driverOf reads back which driver a document is about.
func driverOf(doc string) (Driver, bool) {
	m := driverLine.FindStringSubmatch(doc)
	if m == nil {
		return Driver{}, false
	}
	return Driver{m[1], m[2]}, true
}

// Document is docs/coverage.md.
func Document(r Report, d Driver) string {
	var out strings.Builder
	fmt.Fprintf(&out, `# What libvgpu does with each function of the driver

Driver %s, CUDA %s.

This file is written by `+"`tests/abi/audit`"+` from `+"`tests/abi/classes.def`"+` and
`+"`libvgpu/driver/hooks.def`"+`; change those. "The comparison" is gresd's: every 100 ms it
compares what a job has charged with what the card itself counts for the job's
processes. The difference counts as used, so the job's next allocation pays.

Kernels and graphs that are started by a kernel, on the card, pass no function
of the driver: they are measured as part of the batch that started them.

`, d.Version, d.CUDA)
	fmt.Fprintf(&out, "| class | of %d in libcuda | meaning |\n|---|---|---|\n", r.CUDA)
	for _, k := range classes {
		fmt.Fprintf(&out, "| [%s](#%s) | %d | %s |\n", k.Name, k.Name, r.Count(k.Name, false), k.Meaning)
	}
	for _, k := range classes {
		fmt.Fprintf(&out, "\n## %s\n\n%s: %d functions.\n", k.Name, upper(k.Meaning), r.Count(k.Name, false))
		rows(&out, "| functions | how |\n|---|---|\n", r, func(row Row) (string, bool) {
			return "", row.Class == k.Name && !isNVML(row.Names[0])
		})
	}
	if r.NVML > 0 {
		fmt.Fprintf(&out, "\n## NVML\n\nThe %d functions of libnvidia-ml that tell memory, utilisation or processes.\nOnly `told` is hooked.\n", r.NVML)
		rows(&out, "| class | functions | how |\n|---|---|---|\n", r, func(row Row) (string, bool) {
			return fmt.Sprintf("| %s ", row.Class), isNVML(row.Names[0])
		})
	}
	if len(r.Absent) > 0 {
		fmt.Fprintf(&out, "\n## Not in this driver\n\nHooked for other drivers: %s.\n", code(r.Absent))
	}
	out.WriteString(apis)
	out.WriteString(programs)
	return out.String()
}

// apis is about what reaches a card without libcuda; the tests that it names hold what it says.
const apis = `
## Other APIs

OpenCL, Vulkan and OpenGL do not call libcuda. What they ask of the kernel driver passes the
` + "`ioctl`" + ` of the library (` + "`libvgpu/kernel/ioctl.c`" + `): memory of the card (class 0x40), channel groups, and
how much memory there is. "Records" are the card's own, of who had it (docs/adr/0008).

| | memory | shown | share beside others | hard limit alone | accounted | audited |
|---|---|---|---|---|---|---|
| CUDA | charged where the program asks | the share as the card | slices, and the budget | the budget | memory, GPU time | held |
| OpenCL | charged at the ioctl; CL_MEM_OBJECT_ALLOCATION_FAILURE | CL_DEVICE_GLOBAL_MEM_SIZE | slices, busy by records | the budget, at clEnqueue… | memory; GPU time that the budget charges | held |
| Vulkan | charged at the ioctl; VK_ERROR_OUT_OF_DEVICE_MEMORY | heaps and VK_EXT_memory_budget | slices, busy by records | the budget, at vkQueueSubmit… | memory; GPU time that the budget charges | held |
| OpenGL by EGL | charged at the ioctl; the driver goes on in the host's memory | GL_NVX_gpu_memory_info | slices, busy by records | the budget, behind glFlush… | memory; GPU time that the budget charges | held |
| OpenGL by GLX | charged at the ioctl | GL_NVX_gpu_memory_info | slices, busy by records | not held: acts as soft, said once | memory | held |
| OptiX, tables of 7.0 to 9.1 | as CUDA's, by which it takes it | as CUDA's | slices, and the budget | the budget, as launches of CUDA | memory, GPU time | held |
| OptiX, other tables | as CUDA's | as CUDA's | slices, busy by records | not held: acts as soft, said once | memory | held; named |
| NVDEC | charged; CUDA_ERROR_OUT_OF_MEMORY | as CUDA's | not divided: its engines are not the card's multiprocessors | not held: acts as soft, said once | memory | held |
| what does not load the library | not held | the card | not held | not held | by the audit | killed above the limit, else reported |

Tried by door_test (the forms of each call, refusals, what is told), TestAProgramWithoutCUDAHasItsShare
(a process of its own on the simulated card), TestWorkWithoutCUDA (busy by records), TestEscapes (the
last line). On an H100 (driver 580.159.04), in jobs of 8 GiB of a private Slurm, beside each other and
a CUDA job: each of the three is told 8192 MiB and has 7 allocations of 1 GiB and none more, by the
card's own count 7686 MiB (OpenCL), 7186 (Vulkan) and 7175 (OpenGL, whose other textures are in the
host's memory); memory that Vulkan exports to CUDA in the same process is counted once.

The hard limit of OpenCL, Vulkan and OpenGL ([ADR 12](adr/0012-submissions-pay-wall-time.md)): what puts work
on the card waits as a launch of CUDA does, and the time in which any of it is on the card is charged to the
same budget. That is wall time: a program that waits for each kernel pays for its host's latency. Of OpenCL
kernels, copies within the card and fills wait; copies from and to the host are left out, as CUDA's are. Of
Vulkan each submission with command buffers. Of OpenGL, where the thread's context is of EGL on a display of
NVIDIA, who flushes waits behind the flush (glFlush, glFinish, glReadPixels, eglSwapBuffers, waits that
flush); what the driver begins before that is not charged. Where a job has several cards, Vulkan and OpenGL
count on each on which the process works. Tried on stubs of the libraries by TestAHardLimitHoldsQueues (20 %
within 3 points), TestQueuesWithoutAHardLimit, TestQueuesHaveTheJobsBudget, TestQueuesOfSeveralCards and
TestWorkThatNoGateHoldsIsSaid, and by hand on processors (ocl-icd with pocl, the Vulkan loader with
lavapipe, glvnd with llvmpipe), and on cards
([data](benchmarks/0.10.0-queues/results.jsonl), driver 580.159.04): alone at 20 %, OpenCL has 19.7 to
20.6 % of what it does without a limit in seven ways of launching (H100), Vulkan 18.6 to 20.2 in five, OpenGL
17.0 to 19.2 in seven (H200). One of Vulkan that waits for a semaphore of a later one has 24.7 % of its own
rate without a limit, at which it does not fill the card. Over 5 s from the first moment on, 30 beside a
PyTorch training of 70 and 70 beside one of 30: OpenCL 29.3/71.7 and 68.4/30.8, Vulkan 29.7/71.4 and
68.6/30.6, OpenGL 29.8/71.6 and 68.9/30.4 (H200). Over 4 s beside a full queue of CUDA: OpenCL 27.7/70.3 and
65.3/32.6, Vulkan 27.5/70.7 and 65.5/32.4, OpenGL 28.1/70.1 and 66.3/32.0: for the first half second a job
that its budget held has less. Not held:
functions by clGetExtensionFunctionAddress, a driver of Vulkan, OpenCL or EGL that a program opens without
their loaders, OpenGL by GLX, and OpenGL that never flushes by one of those calls.

OptiX launches by functions of the driver without a name, so its own table of functions leads to the gate
(` + "`libvgpu/hooks/optix.c`" + `, TestAHardLimitHoldsQueues on a stub): on an H200 19.9 to 20.1 % alone at 20, full
queues and one launch at a time, tables of OptiX 7.7, 8.0 and 9.0, and 50.3 at 50; without the gate it had all
of the card. OptiX leaves the card between two launches, as a program that waits for each does: 30 beside a
full queue of 70 25.9/65.4, 70 beside 30 51.3/34.5 (8 s). NVDEC (four decoders, H200): 2,609 frames a second at
a hard 20 % of 2,616 without, and 10 decoders of 1920x1080 in 1,437 MiB; the next has error 2.

Between APIs memory is charged once, by who asks the kernel driver for it: CUDA pays for its own, the
other API for what it exports to CUDA, as long as it holds it or a descriptor of it is open. A dup of
an object in the kernel driver (DUP_OBJECT) is not followed: what it keeps is seen by the comparison.
Not read, and seen by the comparison: what the kernel driver takes for channels and page tables.
`

// programs is about how programs come by the functions; tests/stress (LD_PRELOAD) and TestEscapes
// (both levels) hold what it says.
const programs = `
## Kinds of programs

Held are memory and compute; LD_PRELOAD is level 1, the list of ld.so level 2 ([security.md](security.md)).

| program | LD_PRELOAD | /etc/ld.so.preload | tried by |
|---|---|---|---|
| linked to libcuda, or dlopen and dlsym | held | held | TestEscapes |
| a preload of the user's that wraps dlsym, by version 2.34, by 2.2.5, or by dlvsym in libc | held | held | TestEveryWayToFindTheDriverIsHeld, TestEscapes |
| the same by reading libc's symbols by hand | not held | not held | not tried; TestEscapes reads libcuda's so |
| RTLD_DEEPBIND or dlmopen of a library that is NVIDIA's by its name, or is opened by a path and names libcuda.so | held | held | TestEveryWayToFindTheDriverIsHeld, TestEscapes |
| the same of a library that calls CUDA through a third, or by a bare name | not held | not held | not tried |
| a copy of libcuda or NVML, opened by its path when the process has the library already | limited; the calls go to the first copy | limited | TestEveryWayToFindTheDriverIsHeld, TestNVMLAloneTellsTheSameTotal, TestEscapes |
| dlvsym of a name of the driver | finds none on the simulated card, whose names have no versions | the same | by hand; a real driver not tried |
| AddressSanitizer | held with ASAN_OPTIONS=verify_asan_link_order=0, else it does not start | not tried | TestEveryWayToFindTheDriverIsHeld |
| ThreadSanitizer, LeakSanitizer, UndefinedBehaviorSanitizer | held | not tried | TestEveryWayToFindTheDriverIsHeld |
| libcuda closed more often than opened | held | not tried | TestEveryWayToFindTheDriverIsHeld |
| linked statically | not held | not held | TestEscapes |
| 32-bit | not held: ld.so says "wrong ELF class" and goes on | the same | seen in a job, by no test |
| musl | not known to start | not loaded | not tried; [containers.md](containers.md) |
| static TLS of 300 KiB | held | not tried | TestLargeThreadLocalVariablesLeaveRoomForTheWatcher |
| another time namespace | held | not tried | tests/libvgpu/death_test.c |
| a clock of a preload's that runs faster (faketime) | held | not tried | TestAFakedClockGivesNoMore |
| all descriptors closed, and their numbers used again (closefrom(3)) | held; the program's files stay as they are | not tried | TestEveryWayToFindTheDriverIsHeld |
| suspended by cuda-checkpoint, and brought back | held; what it has charged stays so | not tried | TestASuspendedProcessKeepsItsPlace, TestCheckpointedJobKeepsItsShare |
| a child of a raw clone(2) | held | not tried | TestEveryWayToFindTheDriverIsHeld |
`

// rows writes a table of the lines that pick takes, each after its first cells.
func rows(out *strings.Builder, head string, r Report, pick func(Row) (string, bool)) {
	for _, row := range r.Rows {
		first, take := pick(row)
		if !take {
			continue
		}
		if head != "" {
			out.WriteString("\n" + head)
			head = ""
		}
		fmt.Fprintf(out, "%s| %s | %s |\n", first, code(row.Names), strings.ReplaceAll(row.Reason, "|", `\|`))
	}
}

func code(names []string) string { return "`" + strings.Join(names, "` `") + "`" }

func upper(s string) string { return strings.ToUpper(s[:1]) + s[1:] }
