// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// instancesEnv has this program look at a machine by NVML: the library keeps one machine
// for the life of a process.
const instancesEnv = "SIMGPU_TEST_INSTANCES"

func TestInstancesByNVML(t *testing.T) {
	if os.Getenv(instancesEnv) != "" {
		lookAtInstances(t, openNVML(t, os.Getenv("SIMGPU_STATE")))
		return
	}
	_, state := newMachine(t, "instances")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestInstancesByNVML$", "-test.v")
	cmd.Env = append(os.Environ(), "SIMGPU_STATE="+state, instancesEnv+"=1")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v\n%s", err, out)
	}
}

func lookAtInstances(t *testing.T, lib nvml.Interface) {
	n, rc := lib.DeviceGetCount()
	ok(t, "DeviceGetCount", rc)
	if n != 2 {
		t.Fatalf("%d cards, want 2: instances are not counted", n)
	}
	gpu, rc := lib.DeviceGetHandleByIndex(0)
	ok(t, "DeviceGetHandleByIndex", rc)
	most, rc := gpu.GetMaxMigDeviceCount()
	ok(t, "GetMaxMigDeviceCount", rc)
	var got []string
	for i := range most {
		mig, rc := gpu.GetMigDeviceHandleByIndex(i)
		if rc == nvml.ERROR_NOT_FOUND {
			continue
		}
		ok(t, "GetMigDeviceHandleByIndex", rc)
		got = append(got, look(t, lib, gpu, mig))
	}
	want := []string{
		"NVIDIA H100 80GB HBM3 MIG 1g.10gb 1 0 10 10240", "NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb 5 0 20 20480",
		"NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb 5 1 20 20480",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	other, rc := lib.DeviceGetHandleByIndex(1)
	ok(t, "DeviceGetHandleByIndex", rc)
	if most, rc := other.GetMaxMigDeviceCount(); rc != nvml.SUCCESS || most != 0 {
		t.Errorf("a card without instances may have %d, %v", most, rc)
	}
}

func look(t *testing.T, lib nvml.Interface, gpu, mig nvml.Device) string {
	t.Helper()
	name, rc := mig.GetName()
	ok(t, "GetName", rc)
	uuid, rc := mig.GetUUID()
	ok(t, "GetUUID", rc)
	if again, rc := lib.DeviceGetHandleByUUID(uuid); rc != nvml.SUCCESS || again != mig || !strings.HasPrefix(uuid, "MIG-") {
		t.Errorf("%s: not found by its UUID: %v", uuid, rc)
	}
	if parent, rc := mig.GetDeviceHandleFromMigDeviceHandle(); rc != nvml.SUCCESS || parent != gpu {
		t.Errorf("%s: another parent: %v", uuid, rc)
	}
	if is, rc := mig.IsMigDeviceHandle(); rc != nvml.SUCCESS || !is {
		t.Errorf("%s: no handle of an instance: %v", uuid, rc)
	}
	if _, rc := mig.GetMinorNumber(); rc != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("%s: a minor number: %v", uuid, rc)
	}
	gi, rc := mig.GetGpuInstanceId()
	ok(t, "GetGpuInstanceId", rc)
	ci, rc := mig.GetComputeInstanceId()
	ok(t, "GetComputeInstanceId", rc)
	memory, rc := mig.GetMemoryInfo()
	ok(t, "GetMemoryInfo", rc)
	attributes, rc := mig.GetAttributes()
	ok(t, "GetAttributes", rc)
	return fmt.Sprint(name, " ", gi, " ", ci, " ", memory.Total>>30, " ", attributes.MemorySizeMB)
}

// Instances of one card keep their time and memory to themselves; a process has one.
func TestInstancesByCUDA(t *testing.T) {
	m, state := newMachine(t, "instances")
	cards := m.Status()
	if len(cards) != 5 {
		t.Fatalf("%d cards and instances, want 5", len(cards))
	}
	use := func(list string, args ...string) *tenant {
		return startTenantWith(t, state, []string{"CUDA_VISIBLE_DEVICES=" + list}, args...)
	}
	for list, want := range map[string]struct {
		devices, gib float64
	}{
		cards[2].UUID: {1, 10}, cards[3].UUID: {1, 20}, cards[2].UUID + "," + cards[3].UUID: {1, 10},
		"0": {1, 10}, "1": {1, 80}, "1," + cards[2].UUID: {1, 80}, cards[0].UUID: {1, 10},
	} {
		x := use(list, "--count", "--report")
		devices, report := x.next()["devices"].(float64), x.next()
		if gib := report["device_total"].(float64) / (1 << 30); devices != want.devices || gib != want.gib {
			t.Errorf("%s: %v devices, the first of %v GiB, want %v", list, devices, gib, want)
		}
		if report["nvml_total"] != report["device_total"] {
			t.Errorf("%s: NVML says %v, CUDA %v", list, report["nvml_total"], report["device_total"])
		}
	}
	a := use(cards[2].UUID, "--saturate", "1")
	b := use(cards[3].UUID, "--saturate", "1")
	for _, x := range []*tenant{a, b} {
		did, late := fractions([]*tenant{x})
		bounded(t, did, late, [2]float64{0.9, 1.1})
	}
	if err := m.XID(0, 79, 0, 999); err != nil {
		t.Fatal(err)
	}
	if cards := m.Status(); !cards[2].Lost || !cards[4].Lost || cards[1].Lost {
		t.Error("instances do not go with their card")
	}
}
